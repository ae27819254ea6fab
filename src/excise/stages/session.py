"""One execution of a training stage: its texts, the remembered reference and token weights, and the losses of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from excise.data.batches import Draw
from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.errors import InputError
from excise.reference import Needs, Reference
from excise.stages.state import State
from excise.stages.views import Views, Weigher, contrast_logp
from excise.subject import ModelSpec, Subject, load
from excise.tokens import autocast, collate, layout_of, score
from excise.view import View
from excise.weights.uniform import Uniform

if TYPE_CHECKING:
    from excise.stages.train import Side, Term, Train


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
    steps: int
    per_epoch: int
    stopped: str = ""
    tokens: int = 0

    # --- building -----------------------------------------------------------------------------------------------------

    @staticmethod
    def build(stage: Train, state: State) -> Session:
        subject = state.subject
        sides: set[Side] = {term.data for term in stage.terms}
        examples: dict[Side, tuple[Example, ...]] = {
            "forget": state.side("forget") if "forget" in sides else (),
            "retain": state.side("retain") if "retain" in sides else (),
            "coherence": tuple(Example(f"coherence-{n}", "", text) for n, text in enumerate(stage.coherence)),
        }
        texts: dict[Side, list[Encoded]] = {
            side: [encode(subject.tokenizer, subject.template, e, max_length=stage.max_length) for e in rows] for side, rows in examples.items()
        }
        per_epoch = stage.batches.steps_per_epoch(len(texts["forget"]), len(texts["retain"]))
        steps = stage.steps if stage.steps is not None else math.ceil(stage.epochs * per_epoch - 1e-9)
        views = Views(subject, state.precision)
        session = Session(stage, state, views, stage.terms, texts, None, {}, steps, per_epoch)
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
        wanted = self._scheduled_texts(lambda term: bool(term.reads_reference))
        self._narrated("remembering what the model says before it is changed", len(wanted), lambda advance: reference.remember(wanted, advance))

    def _scheduled_texts(self, reads: Callable[[Term], bool]) -> list[Encoded]:
        """The texts that the terms in question will see in this stage, each once."""
        drawn: dict[Side, set[int]] = {"forget": set(), "retain": set(), "coherence": set()}
        for step in range(self.steps):
            draw = self.draw(step)
            drawn["forget"].update(draw.forget)
            drawn["retain"].update(draw.retain)
            drawn["coherence"].update(draw.coherence)
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

    # --- running ------------------------------------------------------------------------------------------------------

    def draw(self, step: int) -> Draw:
        drawn = self.stage.batches.draw(step, len(self.texts["forget"]), len(self.texts["retain"]), self.state.seed)
        count = len(self.texts["coherence"])
        return replace(drawn, coherence=(step % count,)) if count else drawn

    def _text(self, term: Term, index: int) -> Encoded:
        text = self.texts[term.data][index]
        return replace(text, start=1) if term.all_positions else text

    def losses(self, draw: Draw, log: dict[str, float]) -> list[dict[str, Callable[[], Tensor]]]:
        """One entry per micro-batch: side -> function that gives that side's weighted loss."""
        parts: list[dict[str, Callable[[], Tensor]]] = [{} for _ in range(self.stage.accumulate)]
        for side, drawn in (("forget", draw.forget), ("retain", draw.retain), ("coherence", draw.coherence)):
            indices = [i for i, term in enumerate(self.terms) if term.data == side and term.scale != 0.0]
            for all_positions in (False, True):
                chosen = [i for i in indices if self.terms[i].all_positions == all_positions]
                if not chosen or not drawn:
                    continue
                totals = (float(sum(self._text(self.terms[chosen[0]], i).scored for i in drawn)), float(len(drawn)))
                for part, members in zip(parts, _divided(drawn, self.stage.accumulate), strict=True):
                    if members:
                        key = f"{side} (all positions)" if all_positions else side
                        part[key] = self._loss_of(chosen, members, totals, log)
        return parts

    def _loss_of(self, chosen: Sequence[int], members: Sequence[int], totals: tuple[float, float], log: dict[str, float]) -> Callable[[], Tensor]:
        terms = [self.terms[i] for i in chosen]
        texts = [self._text(terms[0], i) for i in members]
        alternatives = None
        if self.alternatives is not None and terms[0].data == "forget":
            alternatives = [self.alternatives[i] for i in members]

        def loss() -> Tensor:
            view = self.views.of(
                texts,
                alternatives,
                layers=tuple(sorted({layer for t in terms for layer in t.layers})),
                logits=any(t.needs_logits for t in terms),
                totals=totals,
            )
            self.tokens += sum(len(t) for t in texts)
            total = torch.zeros((), device=self.state.subject.device)
            for index, term in zip(chosen, terms, strict=True):
                value = term.objective(view, self._weights(index, texts, view))
                log[term.name] = log.get(term.name, 0.0) + float(value.detach())
                total = total + term.scale * value
            return total

        return loss

    def _weights(self, index: int, texts: Sequence[Encoded], view: View) -> Tensor:
        weigher = self.weighers.get(index)
        if weigher is None:
            return torch.ones(len(view.model.row), device=self.state.subject.device)
        return weigher.of(texts)


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
