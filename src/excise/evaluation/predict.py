"""What a model predicts for one batch, as numbers: log-probabilities, arg-max hits, the spread of predictions, gradient norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from excise.data.encode import Encoded
from excise.head import finished, output_head
from excise.precision import autocast
from excise.tokens import Batch, Scored, collate, features_of, score

if TYPE_CHECKING:
    from excise.subject import Subject

_CHUNK = 2**23
"""Logits held at once (32 MB in float32), whatever the batch and the vocabulary."""


def predicted(subject: Subject, batch: Batch, precision: Literal["float32", "bfloat16"], spread: bool) -> list[dict[str, Any]]:
    """For each text log p and arg-max hit of its tokens (and the spread of the predictions), and whether all is finite."""
    with autocast(precision, subject.device):
        scored = score(subject, batch)
        features = features_of(scored)
    # the head runs outside autocast: bfloat16 logits are spaced .125 apart around 20, which ties arg-maxes
    with torch.autocast(subject.device.type, enabled=False):
        predictions = _predictions(subject, scored, features, spread)
    logp, hits, expected, deviation = (scored.split(part) for part in predictions)
    rows: list[dict[str, Any]] = []
    for i in range(scored.rows):
        values: dict[str, Any] = {"logp": tuple(logp[i].tolist()), "hits": tuple(map(bool, hits[i].tolist()))}
        if spread:
            values |= {"expected": tuple(expected[i].tolist()), "deviation": tuple(deviation[i].tolist())}
        rows.append({**values, "finite": bool(torch.isfinite(logp[i]).all())})
    return rows


def _predictions(subject: Subject, scored: Scored, features: Tensor, spread: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p of each target [n] (not finite where a logit of its position is NaN or plus infinity), whether it is the arg-max [n], and mean and
    deviation of log p under the prediction [n] (zeros unless asked for).
    """
    weight = cast(nn.Linear, subject.base.get_output_embeddings()).weight
    if weight.is_floating_point():
        features = features.to(weight.dtype)
    vocab = subject.base.config.get_text_config().vocab_size
    size = max(1, _CHUNK // vocab)
    room = features.new_empty(min(size, len(features)), vocab)
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for part, target in zip(features.split(size), scored.target.split(size), strict=True):
        logits = _logits(subject, part, room)
        picked = logits.gather(-1, target[:, None])[:, 0]
        highest = logits.amax(dim=-1)
        shifted = logits.sub_(highest[:, None])  # in place, here and below: a pass over [n, vocabulary] costs as much as a layer
        if spread:
            normaliser = torch.logsumexp(shifted, dim=-1)
            expected, deviation = _spread(shifted - normaliser[:, None])
        else:
            normaliser = shifted.exp_().sum(dim=-1).log()
            expected, deviation = torch.zeros_like(picked), torch.zeros_like(picked)
        parts.append((picked - highest - normaliser, picked >= highest, expected, deviation))
    logp, hits, expected, deviation = (torch.cat(column) for column in zip(*parts, strict=True))
    return logp, hits, expected, deviation


def _logits(subject: Subject, features: Tensor, room: Tensor) -> Tensor:
    """Float32 logits [m, vocabulary], in memory that is there already: the system would hand out new memory page by page."""
    head: Any = subject.base.get_output_embeddings()
    plain = type(head) is nn.Linear and head.bias is None and not (head._forward_hooks or head._forward_pre_hooks)
    if plain and features.dtype == head.weight.dtype == torch.float32 and head.weight.shape[0] == room.shape[1]:
        return finished(subject.base, torch.mm(features, head.weight.T, out=room[: len(features)]))
    return output_head(subject.base, features).float()


def _spread(logp: Tensor) -> tuple[Tensor, Tensor]:
    """sum_v p log p [n] and the square root of sum_v p (log p)^2 - (sum_v p log p)^2 [n]."""
    p = logp.exp()
    mean = (p * logp).sum(dim=-1)
    return mean, (p * (logp - mean[:, None]).square()).sum(dim=-1).sqrt()


def gradient_norm(subject: Subject, text: Encoded, precision: Literal["float32", "bfloat16"]) -> float | None:
    """Norm of the gradient of a text's mean loss over all parameters; None where it is not finite. No gradient stays behind."""
    parameters = [p for p in subject.model.parameters() if p.is_floating_point()]
    wanted = [p.requires_grad for p in parameters]
    torch.clear_autocast_cache()  # weights that were converted without gradients would cut the graph
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.enable_grad(), autocast(precision, subject.device):
            scored = score(subject, collate([text], "padded"))
            loss = -scored.mean(scored.token_logp)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    finally:
        torch.clear_autocast_cache()
        for parameter, flag in zip(parameters, wanted, strict=True):
            parameter.requires_grad_(flag)
    norm = torch.stack([g.double().norm() for g in gradients if g is not None]).norm()
    return float(norm) if bool(torch.isfinite(norm)) else None
