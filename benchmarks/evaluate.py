"""The TOFU suite against a plain loop: one forward pass for each metric, padded batches of 8, full logits, greedy batches of 8.

    python -m benchmarks.evaluate --data FOLDER_WITH_TOFU [--model embedded:smollm2] [--rows 40] [--new-tokens 64] [--repeats 2]

Both sides run in turn in this process, on the same rows in the same precision, and the values of every likelihood metric must
agree; generations are compared too. The best time of each side counts, because other work can only make it slower.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from excise.data.benchmarks.tofu import Tofu
from excise.data.encode import encode, encode_prompt
from excise.data.example import Benchmark, Example
from excise.evaluation.collect import collect
from excise.evaluation.generate import stop_ids
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, Records, TextScore
from excise.evaluation.suites import score
from excise.evaluation.suites.suite import Suite
from excise.evaluation.suites.tofu import tofu
from excise.layout import layout_of
from excise.loading import load
from excise.precision import autocast, resolve_precision
from excise.subject import Subject

BATCH = 8
PARTS: dict[str, tuple[str, ...]] = {
    "forget": ("true", "true", "true", "true", "true", "true", "paraphrase", "false"),
    "retain": ("true", "true", "true", "true", "paraphrase", "false"),
    "real_authors": ("true", "true", "false", "true", "false"),
    "world_facts": ("true", "true", "false", "true", "false"),
    "holdout": ("true", "true", "true"),
}
"""Split -> what the metrics read, one entry for each metric that reads it: probability, exact memorisation, extraction strength,
loss, zlib and Min-K on forget (the last three on hold-out too), perplexity on retain, probability normalised over the false answers
and truth ratio elsewhere."""


def plain_scores(subject: Subject, examples: Sequence[Example], answers: Callable[[Example], Sequence[str]], precision: Any) -> list[list[TextScore]]:
    """Each answer alone in a padded batch of 8, logits of every position, as a metric of its own would do it."""
    texts = [(i, text) for i, e in enumerate(examples) for text in answers(e)]
    found: list[list[TextScore]] = [[] for _ in examples]
    for start in range(0, len(texts), BATCH):
        rows = texts[start : start + BATCH]
        encoded = [encode(subject.tokenizer, subject.template, examples[i], answer=text) for i, text in rows]
        width = max(map(len, encoded))
        ids = torch.tensor([[*e.ids, *[0] * (width - len(e))] for e in encoded])
        mask = torch.tensor([[1] * len(e) + [0] * (width - len(e)) for e in encoded])
        with torch.no_grad(), autocast(precision, subject.device):
            hidden = subject.base.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        with torch.no_grad():
            logits = subject.head(hidden.to(subject.head.weight.dtype)).float()
            logp = torch.log_softmax(logits[:, :-1], dim=-1)
        for (i, text), e, row, whole in zip(rows, encoded, logp, logits, strict=True):
            target = torch.tensor(e.ids[e.start :])
            place = slice(e.start - 1, len(e) - 1)
            picked = row[place].gather(-1, target[:, None])[:, 0]
            found[i].append(TextScore(text, tuple(picked.tolist()), tuple((whole[place].argmax(-1) == target).tolist())))
    return found


def plain_answers(subject: Subject, examples: Sequence[Example], new_tokens: int, precision: Any) -> list[str]:
    """Greedy answers in left-padded batches of 8, in the order of the split."""
    stops = stop_ids(subject)
    said: list[str] = []
    for start in range(0, len(examples), BATCH):
        prompts = [encode_prompt(subject.tokenizer, subject.template, e.prompt) for e in examples[start : start + BATCH]]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.no_grad(), autocast(precision, subject.device):
            out = subject.base.generate(  # type: ignore[operator]
                input_ids=ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=list(stops), pad_token_id=stops[0]
            )
        for row in out[:, width:].tolist():
            end = next((k for k, token in enumerate(row) if token in stops), len(row))
            said.append(str(subject.tokenizer.decode(row[:end], skip_special_tokens=True)))
    return said


def plain(subject: Subject, benchmark: Benchmark, sources: dict[str, str], new_tokens: int, precision: Any) -> tuple[Records, float, float]:
    """Records by the plain loop, and the seconds of the likelihoods and of the answers."""
    seconds = [0.0, 0.0]
    records: dict[str, list[Record]] = {}
    for split, source in sources.items():
        examples = benchmark.split(source)
        begun = time.perf_counter()
        kept: dict[str, list[list[TextScore]]] = {}
        ways: dict[str, Callable[[Example], Sequence[str]]] = {
            "true": lambda e: (e.answer,),
            "paraphrase": lambda e: (e.paraphrased_answer,),
            "false": lambda e: e.false_answers,
        }
        for part in PARTS[split]:
            kept[part] = plain_scores(subject, examples, ways[part], precision)
        seconds[0] += time.perf_counter() - begun
        begun = time.perf_counter()
        said: Sequence[str | None] = plain_answers(subject, examples, new_tokens, precision) if split != "holdout" else [None] * len(examples)
        seconds[1] += time.perf_counter() - begun
        records[split] = [
            Record(
                *(e.id, e.prompt, e.answer),
                true=kept["true"][i][0],
                paraphrase=kept["paraphrase"][i][0] if "paraphrase" in kept else None,
                false=tuple(kept["false"][i]) if "false" in kept else (),
                generation=said[i],
            )
            for i, e in enumerate(examples)
        ]
    return records, seconds[0], seconds[1]


def ours(subject: Subject, benchmark: Benchmark, suite: Suite, sources: dict[str, str], precision: Any) -> tuple[Records, float, float]:
    """Records by excise, and the seconds of the likelihoods and of the answers."""
    halves: list[Records] = []
    seconds: list[float] = []
    for generation in (False, True):
        plans = {source: _half(suite.plans[split], generation) for split, source in sources.items() if not generation or split != "holdout"}
        begun = time.perf_counter()
        halves.append(collect(subject, benchmark, plans, precision=precision))
        seconds.append(time.perf_counter() - begun)
    records = {
        split: [
            Record(r.id, r.prompt, r.answer, true=r.true, paraphrase=r.paraphrase, false=r.false, generation=said)
            for r, said in zip(halves[0][source], [a.generation for a in halves[1].get(source, ())] or [None] * 10**4, strict=False)
        ]
        for split, source in sources.items()
    }
    return records, seconds[0], seconds[1]


def _half(plan: Plan, generation: bool) -> Plan:
    if generation:
        return Plan(true=False, generation=True, max_new_tokens=plan.max_new_tokens)
    return Plan(paraphrase=plan.paraphrase, false=plan.false)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="embedded:smollm2")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    subject = load(arguments.model, system="You are a helpful assistant.")
    precision = resolve_precision(arguments.precision, subject.device)
    layout_of(subject)
    whole = Tofu(path=arguments.data)()
    whole = Benchmark(whole.name, {**whole.splits, "holdout": whole.retain[40 : 40 + arguments.rows]})
    benchmark = Benchmark(whole.name, {split: rows[: arguments.rows] for split, rows in whole.splits.items()})
    suite = tofu(max_new_tokens=arguments.new_tokens)
    sources = suite.sources(benchmark)
    best: dict[str, list[float]] = {}
    records: dict[str, Records] = {}
    for _ in range(arguments.repeats):
        for side, run in (
            ("plain", lambda: plain(subject, benchmark, sources, arguments.new_tokens, precision)),
            ("excise", lambda: ours(subject, benchmark, suite, sources, precision)),
        ):
            found, likelihoods, answers = run()
            records[side] = found
            now = [likelihoods, answers, likelihoods + answers]
            best[side] = [min(a, b) for a, b in zip(best.get(side, now), now, strict=True)]
    ratio = [a / b for a, b in zip(best["plain"], best["excise"], strict=True)]
    threads, version = torch.get_num_threads(), torch.__version__
    print(f"{arguments.model}, {precision}, {threads} threads, torch {version}; {arguments.rows} rows of {len(sources)} splits")
    print(f"{'seconds':<10}{'likelihoods':>13}{'answers':>10}{'suite':>10}")
    for side, row in best.items():
        print(f"{side:<10}" + "".join(f"{value:>{width}.1f}" for value, width in zip(row, (13, 10, 10), strict=True)))
    print(f"{'ratio':<10}" + "".join(f"{value:>{width}.2f}" for value, width in zip(ratio, (13, 10, 10), strict=True)))
    scores = {side: score(found, suite) for side, found in records.items()}
    differences = {
        n: abs(s.value - o.value) for n, s in scores["plain"].items() if s.value is not None and (o := scores["excise"][n]).value is not None
    }
    likely = {n: d for n, d in differences.items() if "rouge" not in n and "fact" not in n and "rate" not in n and n != "model_utility"}
    same = [
        a.generation == b.generation for split in records["plain"] for a, b in zip(records["plain"][split], records["excise"][split], strict=True)
    ]
    worst = max(likely, key=lambda n: likely[n])
    print(f"largest difference of {len(likely)} likelihood scores: {likely[worst]:.1e} ({worst}); equal answers: {sum(same)} of {len(same)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seconds": best, "ratio": ratio, "differences": differences, "equal_answers": sum(same) / len(same)}))
    if not all(math.isfinite(d) for d in differences.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
