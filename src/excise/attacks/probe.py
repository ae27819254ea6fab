"""Probing: is the knowledge still in the hidden states, even where it is not said?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.attacks.scene import Outcome, Scene
from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.errors import InputError
from excise.evaluation.score import Array, Score, bootstrap
from excise.head import output_head
from excise.hidden import capture, require_layer
from excise.objectives.check import at_least, positive
from excise.precision import autocast, evaluating, resolve_precision
from excise.tokens import buckets, collate

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass(frozen=True)
class Probe:
    """Looks inside: whether a linear probe of the hidden states tells true answers from false ones, and what the logit lens shows.

    Probe: for each layer, a ridge classifier on the hidden state at the last token of an answer is trained on all examples but a few and
    tells of those which of the answers is the true one; ``forget.probe_auc`` is how often a true answer ranks above a false one of the
    same question (1/2 is chance), the best layer's, and the curve shows every layer. Examples of one group are never on both
    sides. Choosing the best of all layers is itself a little optimistic: compare with the twin, for which it is so too.

    Logit lens: the final norm and the output head are applied to the hidden state that predicts each token of the fact;
    ``forget.lens_logp`` is the highest mean log-probability of those tokens over all layers but the last one.

    Paper: Patil et al. 2024 (arXiv 2309.17410), hidden-state attacks; Lynch et al. 2024 (arXiv 2402.16835), latent knowledge probes;
    logit lens: nostalgebraist 2020.
    """

    layers: tuple[int, ...] | None = None
    """Decoder layers (0-based); None: every one."""
    ridge: float = 1.0
    """Strength of the penalty, in units of the mean squared length of the standardised states."""
    folds: int = 5
    """Parts in turn left out of training."""
    limit: int | None = 100
    """The first so many forget examples; None: all."""

    def __post_init__(self) -> None:
        positive("probe.ridge", self.ridge)
        at_least("probe.folds", self.folds, 2)

    def check(self, scene: Scene) -> None:
        for layer in self.layers or ():
            require_layer(layer, scene.subject.depth)
        usable = [e for e in scene.benchmark.forget if e.false_answers]
        if len({e.group or e.id for e in usable}) < 2:
            raise InputError("the probe tells true answers from false ones, and needs forget examples with false answers from at least two groups")

    def __call__(self, scene: Scene) -> Outcome:
        examples = [e for e in scene.benchmark.forget if e.false_answers][: self.limit]
        layers = self.layers or tuple(range(scene.subject.depth))
        answers = [(i, text, j == 0) for i, e in enumerate(examples) for j, text in enumerate((e.paraphrased_answer or e.answer, *e.false_answers))]
        texts = [encode(scene.subject.tokenizer, scene.subject.template, examples[i], answer=text) for i, text, _ in answers]
        states = _states(scene, texts, layers)
        owner, truth = np.array([i for i, _, _ in answers]), np.array([true for _, _, true in answers])
        groups = [e.group or e.id for e in examples]
        ranks = {layer: ranking(states[layer], owner, truth, groups, self.folds, self.ridge) for layer in layers}
        lens = _lens(scene, [e for e in examples if e.span and e.prompt], layers)
        curve = tuple(
            {"layer": float(layer), "probe_auc": float(ranks[layer].mean()), **({"lens_logp": lens[layer][0]} if lens else {})} for layer in layers
        )
        best = max(layers, key=lambda layer: float(ranks[layer].mean()))
        values = ranks[best]
        interval = bootstrap(lambda counts: counts @ values / len(values), [len(values)])
        scores = {"forget.probe_auc": Score(float(values.mean()), "lower", len(values), interval)}
        inner = [layer for layer in layers if layer < scene.subject.depth - 1]
        if lens and inner:
            top = max(inner, key=lambda layer: lens[layer][0])
            scores["forget.lens_logp"] = Score(lens[top][0], "lower", len(lens[top][1]), _mean_interval(lens[top][1]))
        return Outcome(scores, {}, curve)


def ranking(states: Array, owner: NDArray[np.int64], truth: NDArray[np.bool_], groups: Sequence[str], folds: int, ridge: float) -> Array:
    """For each example the share of its false answers that a probe ranks below the true one (a tie counts one half).

    Args:
        states: hidden states [answers, width].
        owner: which example each answer belongs to [answers].
        truth: whether it is the true one [answers].
        groups: of each example; the probe that judges an example has seen none of its group.
    """
    names = list(dict.fromkeys(groups))
    fold_of = {name: i % min(folds, len(names)) for i, name in enumerate(names)}
    fold = np.array([fold_of[groups[int(i)]] for i in owner])
    margins = np.zeros(len(owner))
    for part in sorted(set(fold.tolist())):
        train, test = fold != part, fold == part
        margins[test] = _ridge(states[train], truth[train], states[test], ridge)
    shares = []
    for i in range(len(groups)):
        true, false = margins[(owner == i) & truth], margins[(owner == i) & ~truth]
        shares.append(float(((true[0] > false) + 0.5 * (true[0] == false)).mean()))
    return np.array(shares)


def _ridge(train: Array, truth: NDArray[np.bool_], test: Array, ridge: float) -> Array:
    """Margins of a ridge regression on +-1, with both classes weighing the same; solved in the space of the answers (they are fewer)."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-8
    a, b = (train - mean) / deviation, (test - mean) / deviation
    weight = np.where(truth, 0.5 / truth.sum(), 0.5 / (~truth).sum())
    target = np.where(truth, 1.0, -1.0)
    kernel = a @ a.T / a.shape[1]
    coefficients = np.linalg.solve(kernel + ridge * np.diag(1.0 / (weight * len(weight))), target)
    return cast(Array, (b @ a.T / a.shape[1]) @ coefficients)


@torch.no_grad()
def _states(scene: Scene, texts: Sequence[Encoded], layers: Sequence[int]) -> dict[int, Array]:
    """Layer -> the hidden states [texts, width] at the last token of the answer itself (before the end of the turn)."""
    found: dict[int, list[Any]] = {layer: [None] * len(texts) for layer in layers}
    for group, batch, outputs in _outputs(scene, texts, layers):
        last = [int(torch.nonzero(batch.row == row)[-1]) for row in range(batch.rows)]
        place = torch.tensor([max(i - 1, 0) if texts[g].question[1] else i for i, g in zip(last, group, strict=True)], device=batch.here.device)
        for layer, states in outputs.items():
            for g, state in zip(group, states.flatten(0, 1)[batch.here[place]].float().cpu().numpy(), strict=True):
                found[layer][g] = state
    return {layer: np.stack(rows).astype(np.float64) for layer, rows in found.items()}


@torch.no_grad()
def _lens(scene: Scene, examples: Sequence[Example], layers: Sequence[int]) -> dict[int, tuple[float, Array]]:
    """Layer -> mean over the examples of the mean log-probability of the fact's tokens, and the examples' values."""
    subject = scene.subject
    texts = [encode(subject.tokenizer, subject.template, e) for e in examples]
    spans = [_span(text, example) for text, example in zip(texts, examples, strict=True)]
    if not any(spans):
        return {}
    values: dict[int, list[float]] = {layer: [] for layer in layers}
    norm = _final_norm(subject)
    for group, batch, outputs in _outputs(scene, texts, layers):
        for row, g in enumerate(group):
            chosen = torch.nonzero(batch.row == row)[:, 0][spans[g]] if spans[g] else None
            if chosen is None:
                continue
            for layer, states in outputs.items():
                features = states.flatten(0, 1)[batch.before[chosen]]
                features = features if norm is None else norm(features)
                weight = cast(Tensor, subject.head.weight)
                logp = torch.log_softmax(output_head(subject.base, features.to(weight.dtype)).float(), dim=-1)
                values[layer].append(float(logp.gather(-1, batch.target[chosen][:, None]).mean()))
    return {layer: (float(np.mean(rows)), np.array(rows)) for layer, rows in values.items()}


def _outputs(scene: Scene, texts: Sequence[Encoded], layers: Sequence[int]) -> Any:
    """Batches: which texts, the batch, and layer -> its output [lines, length, width]."""
    subject = scene.subject
    precision = resolve_precision(scene.precision, subject.device)
    with evaluating(subject.model):
        for group in buckets([len(text) for text in texts], 4096):
            batch = collate([texts[i] for i in group], "padded").to(subject.device)
            with autocast(precision, subject.device), capture(subject.layers, layers) as captured:
                subject.decoder(input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False)
            yield group, batch, dict(captured.outputs)


def _span(text: Encoded, example: Example) -> list[int]:
    """Indices of the fact's tokens among the scored tokens."""
    begin = text.answer[0] + example.answer.strip().find(example.span.strip())
    return [i - text.start for i in text.tokens_within(begin, begin + len(example.span.strip())) if i >= text.start]


def _final_norm(subject: Subject) -> nn.Module | None:
    """The norm between the last layer and the output head."""
    found = [child for name, child in subject.decoder.named_children() if ("norm" in name or name == "ln_f") and not isinstance(child, nn.ModuleList)]
    return found[-1] if found else None


def _mean_interval(values: Array) -> tuple[float, float] | None:
    return bootstrap(lambda counts: counts @ values / len(values), [len(values)])
