"""The token scores of single answers, for a person or a program to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.stages.views import Views, contrast_logp
from excise.weights import Attribution

if TYPE_CHECKING:
    from excise.subject import Subject


@torch.no_grad()
def attribute(
    subject: Subject,
    examples: Sequence[Example],
    attribution: Attribution,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> list[dict[str, Any]]:
    """One mapping per example: ``prompt_tokens`` with what was masked, ``tokens`` with every score of every answer token.

    ``tokens`` holds text, logp, logp_masked, delta, entropy, phi, selected and weight; log-probabilities and entropy in
    nats. With a contrast model ``logp_masked`` is that model's log-probability.
    """
    views = Views(subject, precision, masking=attribution.masking)
    texts = [encode(subject.tokenizer, subject.template, e) for e in examples]
    if attribution.contrast is not None:
        from excise.loading import ModelSpec, load

        contrast = load(ModelSpec(path=attribution.contrast, template=subject.template.style, system=subject.template.system))
        views.contrast = contrast_logp(views, contrast, attribution.contrast, texts)
    return [_table(views, attribution, e, text) for e, text in zip(examples, texts, strict=True)]


def _table(views: Views, attribution: Attribution, example: Example, text: Encoded) -> dict[str, Any]:
    view = views.of([text])
    other = view.contrast if attribution.contrast is not None else view.masked
    columns = {
        "logp": view.model.token_logp,
        "logp_masked": other.token_logp,
        "delta": attribution.delta(view),
        "entropy": view.model.entropy,
        "phi": attribution.phi(view),
        "weight": attribution(view),
    }
    rows = {name: [round(float(v), 5) for v in values] for name, values in columns.items()}
    hidden = set(attribution.masking.hidden(text))
    selected = [w > 0 if attribution.select == "hard" else w > 1 for w in rows["weight"]]
    prompt = [{"text": _piece(text, i), "masked": i in hidden} for i in range(text.start)]
    order = ("logp", "logp_masked", "delta", "entropy", "phi", "selected", "weight")
    tokens = [
        {"text": _piece(text, text.start + i), **{name: (selected[i] if name == "selected" else rows[name][i]) for name in order}}
        for i in range(text.scored)
    ]
    return {"id": example.id, "question": example.prompt, "answer": example.answer, "prompt_tokens": prompt, "tokens": tokens}


def _piece(text: Encoded, index: int) -> str:
    """The characters of a token as they stand in the text."""
    start, end = text.chars[index]
    return text.text[start:end]
