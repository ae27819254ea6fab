"""One execution of a training stage: its texts, the remembered reference and token weights, and the losses of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from excise.data.batches import Batches, Draw, PerSample
from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.errors import InputError
from excise.layout import layout_of
from excise.loading import ModelSpec, load
from excise.parallel import ranks
from excise.precision import autocast
from excise.reference import Needs, Reference
from excise.stages.gradients import Loss
from excise.stages.kept import recall
from excise.stages.state import State
from excise.stages.views import Request, Views, Weigher, contrast_logp
from excise.subject import Subject
from excise.tokens import collate, score
from excise.view import View
from excise.weights.uniform import Uniform

if TYPE_CHECKING:
    from excise.stages.train import Penalty, Side, Term, Train


NOTHING = (math.inf, math.inf)
"""Tokens and examples of a global batch to which this one adds nothing."""
TOGETHER = 2048
"""Tokens up to which both sides run in one forward pass; beyond it one pass fills the machine, and two need less memory."""


@dataclass(frozen=True)
class Share:
    """The terms of one side, and the texts of one micro-batch that they look at."""

    side: str
    terms: Sequence[int]
    request: Request
    scale: float | None = None
    """The scale of all of these terms, where the gradients apply it."""

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in (*self.request.texts, *(self.request.alternatives or ())))


@dataclass
class Session:
    """One execution of a Train stage."""

    stage: Train
    state: State
    views: Views
    terms: tuple[Term, ...]
    texts: dict[Side, list[Encoded]]
    alternatives: list[Encoded] | None
    weighers: dict[int, Weigher]
    batches: Batches
    steps: int
    per_epoch: int
    stopped: str = ""
    tokens: int = 0

    # --- building -----------------------------------------------------------------------------------------------------

    @staticmethod
    def build(stage: Train, state: State) -> Session:
        subject = state.subject
        sides: set[Side] = {term.data for term in stage.terms}
        forget, batches = _with_rephrasings(state.side("forget") if "forget" in sides else (), stage.batches)
        examples: dict[Side, tuple[Example, ...]] = {
            "forget": forget,
            "retain": state.side("retain") if "retain" in sides else (),
            "coherence": tuple(Example(f"coherence-{n}", "", text) for n, text in enumerate(stage.coherence)),
        }
        texts: dict[Side, list[Encoded]] = {
            side: [encode(subject.tokenizer, subject.template, e, max_length=stage.max_length) for e in rows] for side, rows in examples.items()
        }
        per_epoch = batches.steps_per_epoch(len(texts["forget"]), len(texts["retain"]))
        steps = stage.steps if stage.steps is not None else math.ceil(stage.epochs * per_epoch - 1e-9)
        views = Views(subject, state.precision)
        session = Session(stage, state, views, stage.active_terms, texts, None, {}, batches, steps, per_epoch)
        session._resolve_objectives()
        session._prepare_alternatives(examples["forget"])
        session._prepare_reference()
        session._prepare_weights()
        return session

    def _resolve_objectives(self) -> None:
        """Fills in layers and coefficients that depend on the model, and says which."""
        subject = self.state.subject
        norms: dict[int, float] = {}

        def median_norm(layer: int) -> float:
            if layer not in norms:
                norms[layer] = _median_norm(subject, self.texts["forget"] or self.texts["retain"], layer, self.state.precision)
            return norms[layer]

        terms: list[Term] = []
        for term in self.terms:
            resolve = getattr(term.objective, "resolved", None)
            if resolve is not None:
                objective = resolve(subject.depth, median_norm)
                self.state.plan.append(f"{term.name}: {objective}")
                term = replace(term, objective=objective)
            terms.append(term)
        self.terms = tuple(terms)

    def _prepare_alternatives(self, forget: Sequence[Example]) -> None:
        if not any(term.needs_alternative for term in self.terms):
            return
        require_alternatives(forget)
        subject = self.state.subject
        self.alternatives = [encode(subject.tokenizer, subject.template, e, answer=e.alternative) for e in forget]

    def _prepare_reference(self) -> None:
        reads = {part for term in self.terms for part in term.reads_reference}
        layers = tuple(sorted({layer for term in self.terms if "hidden" in term.reads_reference for layer in term.layers}))
        needs = Needs(logp="logp" in reads, logits="logits" in reads, layers=layers)
        if not needs:
            return
        self.views.reference = reference = Reference(self.state.subject, needs, self.state.precision, self.state.max_tokens)
        if (other := self._earlier_reference()) is not None:
            reference.head, reference.bias, reference.features = other.head, other.bias, other.features
        wanted = self._scheduled_texts(lambda term: bool(term.reads_reference))
        self._narrated("remembering what the model says before it is changed", len(wanted), lambda advance: reference.remember(wanted, advance))

    def _earlier_reference(self) -> Reference | None:
        """That of another stage of this run which looks at logits of the same model: its copy of the head serves both."""
        if self.stage.reference == "stage":
            return None
        others = [session.views.reference for session in self.state.prepared.values() if isinstance(session, Session)]
        return next((other for other in others if other is not None and other.head is not None), None)

    def _scheduled_texts(self, reads: Callable[[Term], bool]) -> list[Encoded]:
        """The texts that the terms in question will see in this stage, each once."""
        drawn: dict[Side, set[int]] = {"forget": set(), "retain": set(), "coherence": set()}
        for step in range(self.steps):
            draw = self.draw(step)
            sides: tuple[tuple[Side, tuple[int, ...]], ...] = (("forget", draw.forget), ("retain", draw.retain), ("coherence", draw.coherence))
            for side, indices in sides:
                drawn[side].update(i for part, _ in self._parts(indices) for i in part)
        texts: list[Encoded] = []
        for term in self.terms:
            if reads(term):
                texts += [self._text(term, i) for i in sorted(drawn[term.data])]
                if term.data == "forget" and self.alternatives is not None:
                    texts += [self.alternatives[i] for i in sorted(drawn["forget"])]
        return texts

    def _prepare_weights(self) -> None:
        for index, term in enumerate(self.terms):
            if isinstance(term.weight, Uniform):
                continue
            masking = getattr(term.weight, "masking", None)
            views = Views(self.state.subject, self.state.precision, masking=masking)
            contrast = getattr(term.weight, "contrast", None)
            if contrast is not None:
                template = self.state.subject.template
                other = load(ModelSpec(path=contrast, template=template.style, system=template.system))
                views.contrast = contrast_logp(views, other, contrast, self.texts[term.data])
                del other
            weigher = Weigher(term.weight, views, self.state.max_tokens)
            self.weighers[index] = weigher
            if weigher.refresh in ("once", "epoch"):
                self.remember_weights(term, weigher)

    def remember_weights(self, term: Term, weigher: Weigher) -> None:
        texts = self.texts[term.data]
        begun = time.perf_counter()
        self._narrated(
            f"scoring which tokens of the {term.data} answers carry the knowledge", len(texts), lambda advance: weigher.remember(texts, advance)
        )
        self.state.plan.append(f"{term.name}: token scores of {len(texts)} answers in {time.perf_counter() - begun:.1f} s")

    def _narrated(self, task: str, total: int, work: Callable[[Callable[[int], None]], None]) -> None:
        narrator = self.state.narrator
        narrator.begin(task, total)
        work(lambda done: narrator.advance(task, done))
        narrator.end(task)

    @property
    def kept_head(self) -> Tensor | None:
        """The output head as it was, which an adapter leaves as it is, where the reference keeps it."""
        reference = self.views.reference
        return reference.head if reference is not None and self.state.subject.is_adapter else None

    # --- running ------------------------------------------------------------------------------------------------------

    def draw(self, step: int) -> Draw:
        drawn = self.batches.draw(step, len(self.texts["forget"]), len(self.texts["retain"]), self.state.seed)
        count = len(self.texts["coherence"])
        return replace(drawn, coherence=(step % count,)) if count else drawn

    def _text(self, term: Term, index: int) -> Encoded:
        text = self.texts[term.data][index]
        return text if term.positions == "scored" else replace(text, start=1 if term.positions == "all" else 0)

    def losses(self, draw: Draw, log: dict[str, float]) -> list[Loss]:
        """The losses of a step, micro-batch by micro-batch; terms that see the same positions of the same texts share one.

        Where the gradients are summed anyway and the texts are few, both sides run in one forward pass.
        """
        parts: list[list[Share]] = [[] for _ in range(self.stage.accumulate)]
        for side, drawn in (("forget", draw.forget), ("retain", draw.retain), ("coherence", draw.coherence)):
            for scale, chosen in self._groups(side) if drawn else ():
                totals = (float(sum(self._text(self.terms[chosen[0]], i).scored for i in drawn)), float(len(drawn)))
                for part, (members, counts) in zip(parts, self._parts(drawn), strict=True):
                    if members:
                        part.append(Share(side, chosen, self._request(chosen, members, totals if counts else NOTHING), scale))
        losses = [Loss(side, partial(self._loss, shares, log), shares[0].scale) for part in parts for side, shares in self._runs(part)]
        if ranks.is_main():  # what looks at no text must not be counted once for each process
            losses += [Loss("adapter", partial(self._penalty, penalty, log)) for penalty in self.stage.penalties]
        return losses

    def _groups(self, side: str) -> list[tuple[float | None, list[int]]]:
        """The terms of a side that share a forward pass, with the scale that they share where the gradients apply it."""
        apart = side == "retain" and self.stage.unscaled
        groups: dict[tuple[int, float | None], list[int]] = {}
        for index, term in enumerate(self.terms):
            if term.data == side:
                order = ("scored", "all", "every").index(term.positions)
                groups.setdefault((order, term.scale if apart else None), []).append(index)
        return [(scale, groups[order, scale]) for order, scale in sorted(groups, key=lambda key: key[0])]

    def _penalty(self, penalty: Penalty, log: dict[str, float]) -> Tensor:
        """A loss on the parameters themselves, compared with what an earlier stage left."""
        known = recall(self.state, penalty.objective.reads)
        parameters = {name: p for name, p in self.state.subject.model.named_parameters() if name in known}
        value = penalty.objective(parameters, known)
        log[penalty.name] = float(value.detach())
        return penalty.scale * value

    def _parts(self, drawn: Sequence[int]) -> list[tuple[Sequence[int], bool]]:
        """This process's examples of each micro-batch, and whether they count.

        Where the weights are spread, all processes must run the model equally often: one without an example of its own runs one of
        another's that does not count.
        """
        parts = _divided(ranks.own_part(drawn), self.stage.accumulate)
        if self.state.parallel == "copies" or not ranks.several():
            return [(part, True) for part in parts]
        busiest = _divided(drawn[:: ranks.world()], self.stage.accumulate)
        return [(part or drawn[:1], bool(part)) if most else ((), True) for part, most in zip(parts, busiest, strict=True)]

    def _runs(self, shares: Sequence[Share]) -> Iterator[tuple[str, Sequence[Share]]]:
        """Which shares run in one forward pass."""
        tokens = sum(share.tokens for share in shares)
        apart = self.state.parallel == "shards" and ranks.several()  # processes with other texts would decide otherwise
        if len(shares) > 1 and getattr(self.stage.gradients, "together", False) and tokens <= TOGETHER and not apart:
            yield " + ".join(share.side for share in shares), shares
        else:
            yield from ((share.side, [share]) for share in shares)

    def _request(self, chosen: Sequence[int], members: Sequence[int], totals: tuple[float, float]) -> Request:
        terms = [self.terms[i] for i in chosen]
        others = self.alternatives if terms[0].data == "forget" else None
        return Request(
            [self._text(terms[0], i) for i in members],
            None if others is None else [others[i] for i in members],
            layers=tuple(sorted({layer for t in terms for layer in t.layers})),
            logits=any(t.needs_logits for t in terms),
            totals=totals,
        )

    def _loss(self, shares: Sequence[Share], log: dict[str, float]) -> Tensor:
        total = torch.zeros((), device=self.state.subject.device)
        for share, view in zip(shares, self.views.together([share.request for share in shares]), strict=True):
            self.tokens += sum(len(t) for t in share.request.texts)
            for index in share.terms:
                term = self.terms[index]
                value = term.objective(view, self._weights(index, share.request.texts, view))
                log[term.name] = log.get(term.name, 0.0) + float(value.detach())
                total = total + (term.scale * value if share.scale is None else value)
        return total

    def _weights(self, index: int, texts: Sequence[Encoded], view: View) -> Tensor:
        weigher = self.weighers.get(index)
        if weigher is None:
            return torch.ones(len(view.model.row), device=self.state.subject.device)
        return weigher.of(texts)


def _with_rephrasings(examples: Sequence[Example], batches: Batches) -> tuple[tuple[Example, ...], Batches]:
    """The forget examples, followed by their rephrasings where the batches ask for some, and the batches that know of them."""
    if not isinstance(batches, PerSample) or not batches.rephrasings:
        return tuple(examples), batches
    chosen = [example.paraphrased_prompts[: batches.rephrasings] for example in examples]
    rephrased = [replace(e, id=f"{e.id}~{k}", prompt=p) for e, prompts in zip(examples, chosen, strict=True) for k, p in enumerate(prompts, start=1)]
    return (*examples, *rephrased), batches.with_rephrasings([len(prompts) for prompts in chosen])


def _divided(indices: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Cuts a batch into ``parts`` pieces of nearly equal size; the last ones may be empty."""
    size = math.ceil(len(indices) / parts)
    return [indices[i * size : (i + 1) * size] for i in range(parts)]


@torch.no_grad()
def _median_norm(subject: Subject, texts: Sequence[Encoded], layer: int, precision: Literal["float32", "bfloat16"]) -> float:
    """Median norm of the hidden states of scored tokens after a layer, over the first texts."""
    texts = texts[:64]
    with autocast(precision, subject.device):
        norms = [
            score(subject, collate([text], layout_of(subject)), layers=(layer,), logits=False).hidden[layer].float().norm(dim=-1) for text in texts
        ]
    return float(torch.cat(norms).median())


def require_alternatives(forget: Sequence[Example]) -> None:
    """An error where a forget example has no alternative answer to prefer."""
    lacking = [e.id for e in forget if not e.alternative]
    if lacking:
        raise InputError(
            f"{len(lacking)} of {len(forget)} forget examples have no alternative answer (the first is {lacking[0]!r}): "
            "give them an 'alternative' field, a refusal or a false answer"
        )
