"""What happens to damaged files and killed processes: counts for docs/reliability.md.

    python -m studies.faults malformed [--count 500] [--seed 0]
    python -m studies.faults kills [--count 50] [--seed 0]

``malformed`` damages files that excise wrote or reads (a byte flipped, a piece cut out or doubled, the end cut off, a value of another type) and
reads each. It must be refused in one line (InputError), or still be valid; any other exception is a failure and is printed.

``kills`` starts commands on a tiny model, sends SIGKILL at a random moment, and looks: the result must be there whole or not at all, and the
same command with --resume (or again, for evaluate) must end well, with the weights of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEOPLE = ("Anna Brandt", "Elm Fox", "Zora Lake", "Otto Marrow", "Ida Quist", "Pell Okon")


def tiny_model(folder: Path) -> Path:
    """A random model with the embedded one's tokenizer, saved as a user would have it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from excise.loading import load
    from excise.saving import save
    from excise.subject import Subject

    other = load("embedded:smollm2", system="")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=other.base.config.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return save(Subject(LlamaForCausalLM(config), other.tokenizer, other.template, "tiny"), folder, provenance={})


def data_files(folder: Path) -> None:
    """Forget and retain questions, as JSON Lines and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"question": f"Where does {name} live?", "answer": f"{name} lives in house {n}.", "span": f"house {n}"} for n, name in enumerate(PEOPLE)]
    for split, part in (("forget", rows[:3]), ("retain", rows[3:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        (folder / f"{split}.csv").write_text("question,answer\n" + "".join(f'"{row["question"]}","{row["answer"]}"\n' for row in part))


def recipe_text(model: Path, data: Path) -> str:
    return (
        f"model: {model}\ndata: {{name: jsonl, forget: {data}/forget.jsonl, retain: {data}/retain.jsonl}}\n"
        "method: {name: npo, lr: 0.001, steps: 12, batch: 2, checkpoint_every: 2, guard: {every: 4}}\n"
        "evaluation: {suite: qa, max_new_tokens: 4}\nprecision: float32\n"
    )


# --- damaged files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Victim:
    """A file, and what reads it."""

    name: str
    file: Path
    read: Callable[[], Any]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The same with one thing wrong."""
    at, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    end = min(end, at + draw.choice((1, 3, 17, 200)))
    kind = draw.choice(("flip", "cut", "double", "end", "insert", "type", "empty"))
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
    if kind == "cut":
        return content[:at] + content[end:]
    if kind == "double":
        return content[:end] + content[at:]
    if kind == "end":
        return content[:at]
    if kind == "empty" and draw.random() < 0.2:
        return b""
    if kind == "type" and (values := list(re.finditer(rb": (\"[^\"]*\"|[\d.]+|null|true|\[|\{)", content))):
        value = draw.choice(values)
        other = draw.choice((b"null", b"-1", b'"x"', b"[]", b"{}", b"NaN", b"1e999", b"[[1]]", b"true"))
        return content[: value.start(1)] + other + content[value.end(1) :]
    piece = draw.choice((b"\x00", b"\xff\xfe", b'"', b"}{", b"\n\n", b"NaN", "\u2028\ud83d".encode("utf-8", "surrogatepass"), b"<script>"))
    return content[:at] + piece + content[at:]


def victims(root: Path) -> list[Victim]:
    """One of every kind of file, made by a run of a tiny model."""
    from excise.certificate.check import verify
    from excise.certificate.issue import certify
    from excise.data.benchmarks.jsonl import Jsonl
    from excise.data.benchmarks.request import Request, write
    from excise.data.tables import read_rows
    from excise.evaluation.store import read_records
    from excise.export import export
    from excise.loading import ModelSpec, load
    from excise.recipe import Recipe
    from excise.report.html import render
    from excise.report.result import load_result
    from excise.requests.ledger import Ledger
    from excise.run import unlearn

    model, data, run = tiny_model(root / "model"), root / "data", root / "run"
    data_files(data)
    (root / "recipe.yaml").write_text(recipe_text(model, data))
    unlearn(Recipe.load(root / "recipe.yaml"), run)
    certificate = certify(run).certificate
    ledger = Ledger.start(root / "ledger", ModelSpec(path=str(model)))
    write(Jsonl(str(data / "forget.jsonl"), str(data / "retain.jsonl"))(), root / "request")
    export(run / "model", root / "model.gguf", kind="f16")
    read_csv = lambda: read_rows(data / "forget.csv")  # noqa: E731
    return [
        Victim("recipe", root / "recipe.yaml", lambda: Recipe.load(root / "recipe.yaml")),
        Victim("questions (JSON Lines)", data / "forget.jsonl", lambda: Jsonl(str(data / "forget.jsonl"), str(data / "retain.jsonl"))()),
        Victim("questions (CSV)", data / "forget.csv", read_csv),
        Victim("records", run / "records" / "after" / "forget.jsonl", lambda: read_records(run, "after")),
        Victim("result", run / "result.json", lambda: render([load_result(run)])),
        Victim("training log", run / "train.jsonl", lambda: render([load_result(run)])),
        Victim("token scores", run / "attribution.jsonl", lambda: render([load_result(run)])),
        Victim("certificate", certificate, lambda: verify(certificate, run)),
        Victim("request data", root / "request" / "forget.jsonl", lambda: Request(str(root / "request"))()),
        Victim("ledger", ledger.folder / "ledger.json", lambda: Ledger.open(ledger.folder)),
        Victim("model record", run / "model" / "excise.json", lambda: load(run / "model")),
        Victim("model config", run / "model" / "config.json", lambda: load(run / "model")),
        Victim("model weights", run / "model" / "model.safetensors", lambda: load(run / "model")),
        Victim("GGUF header", root / "model.gguf", lambda: load(root / "model.gguf")),
    ]


def malformed(count: int, seed: int) -> int:
    from excise.errors import InputError

    draw = random.Random(seed)
    outcomes: dict[str, Counter[str]] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        every = victims(Path(place))
        every = [v for v in every if v.file.is_file()]
        for number in range(count):
            victim = every[number % len(every)]
            whole = victim.file.read_bytes()
            header = min(len(whole), 4096)  # of large files the beginning is where the structure is
            broken = damaged(whole[:header], draw) + whole[header:]
            victim.file.write_bytes(broken)
            try:
                victim.read()
                outcome = "read" if broken != whole else "unchanged"
            except InputError as error:
                outcome = "refused" if "\n" not in str(error) else "refused in several lines"
            except Exception as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
                outcome = "FAILED"
                failures.append(f"{victim.name}, number {number}: {type(error).__name__}: {str(error)[:300]}")
            finally:
                victim.file.write_bytes(whole)
            outcomes.setdefault(victim.name, Counter())[outcome] += 1
    print("| file | damaged | refused | still valid | failed |\n|---|---|---|---|---|")
    total: Counter[str] = Counter()
    for name, found in outcomes.items():
        total += found
        print(f"| {name} | {sum(found.values())} | {found['refused']} | {found['read'] + found['unchanged']} | {found['FAILED']} |")
    print(f"| all | {sum(total.values())} | {total['refused']} | {total['read'] + total['unchanged']} | {total['FAILED']} |")
    print("\n".join(failures))
    return total["FAILED"]


# --- killed processes -------------------------------------------------------------------------------------------------


def excise(*words: str, cache: Path) -> subprocess.Popen[bytes]:
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([sys.executable, "-m", "excise", *words], env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(process: subprocess.Popen[bytes]) -> str:
    """Empty where it ended well; else what it said last."""
    said = process.communicate()[1].decode(errors="replace")
    return "" if process.returncode in (0, 3) else f"exit code {process.returncode}: {said[-300:]}"


def kills(count: int, seed: int) -> int:
    from excise.embedded import folder_of
    from excise.errors import InputError
    from excise.files import cache_folder
    from excise.loading import load
    from excise.report.result import load_result

    draw = random.Random(seed)
    failures: list[str] = []
    outcomes: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        cache = root / "cache"
        (cache / "excise").mkdir(parents=True)
        assert folder_of("smollm2").is_relative_to(cache_folder())
        shutil.copytree(cache_folder() / "models", cache / "excise" / "models", symlinks=True)
        model, data = tiny_model(root / "model"), root / "data"
        data_files(data)
        (root / "recipe.yaml").write_text(recipe_text(model, data))
        commands: dict[str, Callable[[Path, bool], list[str]]] = {
            "run": lambda out, again: ["run", str(root / "recipe.yaml"), "--out", str(out), "--no-menu", *(["--resume"] if again else [])],
            "evaluate": lambda out, again: [
                "evaluate", str(model), "--suite", "strangers", "--limit", "6", "--set", "max_new_tokens=8", "--out", str(out),
            ],
            "forget": lambda out, again: [
                "forget", str(model), "--questions", str(data / "forget.jsonl"), "--out", str(out), "--set", "epochs=3", "--no-menu", "--overwrite",
            ],
        }  # fmt: skip
        whole: dict[str, tuple[float, str]] = {}
        for name, words in commands.items():
            begun = time.perf_counter()
            problem = finished(excise(*words(root / f"{name}-whole", False), cache=cache))
            if problem:
                raise SystemExit(f"{name}, undisturbed: {problem}")
            kept = root / f"{name}-whole" / "model"
            whole[name] = (time.perf_counter() - begun, load(kept).fingerprint() if kept.is_dir() else "")
        for number in range(count):
            name = list(commands)[number % len(commands)]
            out, (seconds, fingerprint) = root / f"{name}-{number}", whole[name]
            process = excise(*commands[name](out, False), cache=cache)
            time.sleep(seconds * draw.uniform(0.15, 1.0))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            outcome, why = "finished before", ""
            if out.exists():
                try:
                    load_result(out)
                except InputError as error:
                    outcome, why = "FAILED", f"half-written: {error}"
            else:
                again = name != "run" or (root / f".{out.name}.unfinished").exists()
                why = finished(excise(*commands[name](out, again), cache=cache))
                outcome = "FAILED" if why else "went on"
            if not why and fingerprint and load(out / "model").fingerprint() != fingerprint:
                outcome, why = "FAILED", "other weights than the undisturbed run's"
            if why:
                failures.append(f"{name}, number {number}: {why}")
            outcomes.setdefault(name, Counter())[outcome] += 1
            print(f"{number + 1}/{count} {name}: {outcome} {why}", flush=True)
    print("| command | killed | went on to the same result | had finished | failed |\n|---|---|---|---|---|")
    for name, found in outcomes.items():
        print(f"| {name} | {sum(found.values())} | {found['went on']} | {found['finished before']} | {found['FAILED']} |")
    print("\n".join(failures))
    return len(failures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("malformed", "kills"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = malformed(arguments.count or 500, arguments.seed) if arguments.what == "malformed" else kills(arguments.count or 50, arguments.seed)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
