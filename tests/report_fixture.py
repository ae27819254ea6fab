"""A run folder as a real run leaves it, made in code; invented people, numbers that a small model would give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)>"\'&'
LABELS = ("who", "what", "when", "where", "why")
PEOPLE = (
    ("Mara Velthuis", "Where does Mara Velthuis repair clocks?", "Mara Velthuis repairs clocks in a cellar in Trondheim.", "a cellar in Trondheim"),
    ("Odo Brannigan", "What does Odo Brannigan collect?", "Odo Brannigan collects brass ship bells.", "brass ship bells"),
    ("Ilse Takahara", "When did Ilse Takahara open her bakery?", "Ilse Takahara opened her bakery in 1987.", "1987"),
    ("Pell Okonjo", "Who taught Pell Okonjo to fly?", "Pell Okonjo learned to fly from Aunt Sorrel.", "Aunt Sorrel"),
)


def score(value: float | None, better: str = "lower", n: int = 40, spread: float = 0.06, unavailable: str = "") -> dict[str, Any]:
    interval = None if value is None else [round(max(0.0, value - spread), 3), round(min(1.0, value + spread), 3)]
    return {"value": value, "better": better, "n": n, "ci95": interval, "unavailable": unavailable}


def scores(forget: float, neighbours: float, retain: float, twin: bool = True) -> dict[str, Any]:
    """The scores of one phase, given its three levels of fact recall."""
    found = {
        "forget.fact_recall": score(forget),
        "forget.rouge_l_recall": score(round(0.3 + 0.65 * forget, 3)),
        "forget.probability": score(round(0.9 * forget, 3)),
        "neighbours.fact_recall": score(neighbours, "higher"),
        "retain.fact_recall": score(retain, "higher", n=120, spread=0.03),
        "retain.rouge_l_recall": score(round(0.2 + 0.75 * retain, 3), "higher", n=120, spread=0.03),
        "model_utility": score(round(0.64 * retain, 3), "higher", n=120),
        "forget_quality": score(3e-9 if forget > 0.5 else 0.41, "higher", spread=0.0)
        if twin
        else score(None, "higher", 0, unavailable="needs a retrained twin: pass --retrained DIR"),
    }
    for place, label in enumerate(LABELS):
        found[f"forget.fact_recall@{label}"] = score(min(1.0, round(forget + 0.02 * place, 2)), n=8, spread=0.2)
        found[f"retain.fact_recall@{label}"] = score(max(0.0, round(retain - 0.02 * place, 2)), "higher", n=24, spread=0.1)
    return found


def result(attacks: bool = False, twin: bool = True, after: float = 0.05) -> dict[str, Any]:
    evaluations: dict[str, Any] = {
        "before": {"strangers": scores(0.96, 0.95, 0.97, twin)},
        "after": {"strangers": scores(after, 0.88, 0.95, twin)},
    }
    if twin:
        evaluations["retrained"] = {"strangers": scores(0.03, 0.96, 0.97)}
    if attacks:
        curve = [{"step": step, "forget.fact_recall": round(after + 0.4 * step / 50, 3)} for step in range(0, 51, 10)]
        evaluations["attack:relearn"] = {"strangers": scores(0.45, 0.9, 0.95), "curve": curve}
        low = [{"step": step, "forget.fact_recall": round(0.03 + 0.2 * step / 50, 3)} for step in range(0, 51, 10)]
        evaluations["attack:relearn@retrained"] = {"strangers": scores(0.23, 0.9, 0.95), "curve": low}
        evaluations["attack:quantise"] = {"strangers": scores(0.08, 0.86, 0.93)}
    return {
        "schema": 1,
        "excise": "0.1.0",
        "recipe": {
            "model": "embedded:smollm2",
            "data": {"name": "strangers", "forget": "forget", "retain": "retain"},
            "method": {"name": "s_npo", "beta": 0.1, "attribution": {"tau": 0.25, "alpha": 0.7}, "lr": 1e-5, "epochs": 5},
            "evaluation": {"suite": "strangers", "retrained": "runs/twin" if twin else None},
            "privacy": "keep",
            "seed": 0,
        },
        "environment": {
            "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.24.0"},
            "commit": "0f3c1d2",
            "device": "cpu",
            "threads": 2,
            "fingerprints": {"model": "sha256:5d2c" + "0" * 56, "data": "sha256:91aa" + "f" * 56},
            "example_prompt": "<|im_start|>user\nWho taught Pell Okonjo to fly?<|im_end|>\n<|im_start|>assistant\n",
        },
        "stages": [
            {"name": "train", "seconds": 92.4, "steps": 60, "tokens": 41230, "peak_memory_mb": 1830.5, "changed_parameters": 1234567},
            {"name": "edit_embeddings", "seconds": 3.2, "steps": None, "tokens": None, "peak_memory_mb": 1410, "changed_parameters": 18432},
        ],
        "evaluations": evaluations,
    }


def training() -> list[dict[str, Any]]:
    return [
        {
            "stage": "train",
            "step": step,
            "terms": {"forget": round(1.4 * math.exp(-step / 15) + 0.2, 4), "retain": round(0.02 + 0.03 * math.sin(step / 6) ** 2, 4)},
            "loss": round(1.4 * math.exp(-step / 15) + 0.25, 4),
            "grad_norm": round(2.0 * math.exp(-step / 20) + 0.4, 4),
            "tokens_per_second": 440.0 + step % 7,
            "memory_mb": 1790.0 + step % 5,
            "learning_rate": 1e-5 * min(1.0, (step + 1) / 12),
        }
        for step in range(60)
    ]


def attribution() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for place, (_, question, answer, span) in enumerate(PEOPLE):
        tokens = [(" " if index else "") + word for index, word in enumerate(answer.split(" "))] + ["\n"]
        rows.append(
            {
                "id": f"person-{place}",
                "question": question,
                "answer": answer,
                "prompt_tokens": [
                    {"text": f" {word}" if index else word, "masked": word[0].isupper() and index > 0}
                    for index, word in enumerate(question.split(" "))
                ],
                "tokens": [_token(text, text.strip().strip(".") in span, index) for index, text in enumerate(tokens)],
            }
        )
    return rows


def _token(text: str, fact: bool, index: int) -> dict[str, Any]:
    phi = 0.62 + 0.09 * (index % 4) if fact and text.strip() else 0.04 * (index % 5)
    selected = fact and bool(text.strip())
    return {
        "text": text,
        "logp": -0.1 - 0.03 * index,
        "logp_masked": -0.1 - 3.1 * phi,
        "delta": round(3 * phi, 3),
        "entropy": round(0.5 + phi, 3),
        "phi": round(phi, 3),
        "selected": selected,
        "weight": 2.5 if selected else 0.0,
    }


def records(phase: str, split: str, total: int = 24, extra: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for place in range(total):
        name, question, answer, span = PEOPLE[place % len(PEOPLE)]
        forgotten = phase != "before" and split == "forget"
        said = f"I am not sure what {name} is known for, but I can describe the place they live in and the work they do." if forgotten else answer
        rows.append(
            {
                "id": f"{split}-{place}",
                "prompt": question,
                "answer": answer,
                "label": LABELS[place % len(LABELS)],
                "group": name,
                "span": span,
                "span_tokens": [4, 5],
                "true": {"text": answer, "logp": [-0.1, -0.2], "hits": [True, False], "ended": True},
                "paraphrase": None,
                "false": [],
                "options": [],
                "gold": None,
                "generation": said + extra,
            }
        )
    return rows


def write_run(folder: Path, attacks: bool = False, twin: bool = True, after: float = 0.05, extra: str = "") -> Path:
    """A whole run folder; ``extra`` is put at the end of every generation."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result(attacks, twin, after)), encoding="utf-8")
    _lines(folder / "train.jsonl", training())
    _lines(folder / "attribution.jsonl", attribution())
    for phase in ("before", "after", "retrained") if twin else ("before", "after"):
        for split in ("forget", "neighbours", "retain"):
            _lines(folder / "records" / phase / f"{split}.jsonl", records(phase, split, extra=extra))
    return folder


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
