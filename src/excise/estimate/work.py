"""What one training stage of a recipe does in a step: tokens, what is trained, what is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from excise.data.encode import Encoded, Template, encode
from excise.data.example import Example
from excise.objectives.distance import KL
from excise.stages.optimise import Kind
from excise.stages.session import TOGETHER
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.tokens import row_length


@dataclass(frozen=True)
class Side:
    """What runs in one forward pass: a micro-batch of one side, or of both."""

    tokens: int
    """Of the row, in which the texts have their common beginning once."""
    scored: int
    logits: bool
    """Whether logits are looked at."""
    whole: float
    """How many whole distributions are compared (KL) at each scored token, on average."""
    longest: int


@dataclass(frozen=True)
class Work:
    """A training stage."""

    sides: tuple[Side, ...]
    """The micro-batches of a step, one after the other."""
    steps: int
    trainable: int
    """Parameters that are trained."""
    trained_layers: tuple[int, int]
    """First layer with something to train, and the last layer that runs (its successor, as in a range)."""
    trained_share: float
    """Share of a layer's matrices that is trained, in the layers that have any."""
    adapter: bool
    head_trained: bool
    optimiser: Kind
    checkpointing: bool
    half: bool
    """bf16 matrix products."""
    reference: Literal["none", "logp", "logits", "hidden"]
    """What is remembered of the model as it was."""

    @property
    def tokens(self) -> int:
        """Of one step."""
        return sum(side.tokens for side in self.sides)


def work_of(stage: Train, state: State) -> Work:
    """What a stage does, from its recipe, data and the model's outline."""
    subject, config = state.subject, state.subject.base.config.get_text_config()
    names = set(stage.scope.names(subject))
    named = dict(subject.model.named_parameters())
    trainable = sum(p.numel() for name, p in named.items() if name in names)
    layer_of = {id(p): i for i, block in enumerate(subject.layers) for p in block.parameters()}
    touched = sorted({layer_of[id(named[name])] for name in names if id(named[name]) in layer_of})
    outside = any(id(named[name]) not in layer_of for name in names)
    depth = config.num_hidden_layers
    terms = [_resolved(term, depth) for term in stage.terms]
    needs_logits = any(term.needs_logits for term in terms)
    reached = [layer for term in terms for layer in term.layers]
    last = depth if needs_logits or not reached else max(reached) + 1
    first = 0 if subject.is_adapter and not touched else touched[0] if touched else depth
    head = {id(p) for p in subject.head.parameters()}
    embedding = {id(p) for p in subject.embedding.parameters()}
    if outside and any(id(named[name]) in embedding for name in names):
        first = 0
    matrices = [(name, p) for name, p in named.items() if layer_of.get(id(p)) in touched and p.dim() > 1]
    trained_share = sum(p.numel() for name, p in matrices if name in names) / max(1, sum(p.numel() for _, p in matrices))
    return Work(
        sides=_sides(stage, state),
        steps=_steps(stage, state),
        trainable=trainable,
        trained_layers=(first, last),
        trained_share=trained_share,
        adapter=subject.is_adapter,
        head_trained=any(id(named[name]) in head for name in names),
        optimiser=stage.optimiser.kind,
        checkpointing=stage.checkpointing,
        half=state.precision == "bfloat16",
        reference=_reference(stage),
    )


def _resolved(term: Term, depth: int) -> Term:
    """The term with its layer filled in; what depends on the weights does not matter here."""
    resolve = getattr(term.objective, "resolved", None)
    return term if resolve is None else replace(term, objective=resolve(depth, lambda layer: 1.0))


def _steps(stage: Train, state: State) -> int:
    counts = [len(rows) for rows in _rows(stage, state).values()]
    per_epoch = stage.batches.steps_per_epoch(*counts)
    return stage.steps if stage.steps is not None else round(stage.epochs * per_epoch)


def _rows(stage: Train, state: State) -> dict[str, tuple[Example, ...]]:
    sides = {term.data for term in stage.terms}
    return {"forget": state.side("forget") if "forget" in sides else (), "retain": state.side("retain") if "retain" in sides else ()}


def drawn(stage: Train, state: State) -> dict[str, list[Example]]:
    """The examples of the first step, by side."""
    rows = _rows(stage, state)
    draw = stage.batches.draw(0, len(rows["forget"]), len(rows["retain"]), state.seed)
    return {"forget": [rows["forget"][i] for i in draw.forget], "retain": [rows["retain"][i] for i in draw.retain]}


def _sides(stage: Train, state: State) -> tuple[Side, ...]:
    subject = state.subject
    template = Template(subject.template.style, subject.template.system)
    found: list[Side] = []
    members: list[Encoded] = []
    for side, examples in drawn(stage, state).items():
        terms = [term for term in stage.active_terms if term.data == side]
        texts = [encode(subject.tokenizer, template, example, max_length=stage.max_length) for example in examples]
        if not terms or not texts:
            continue
        parts = max(1, min(stage.accumulate, len(texts)))
        everywhere = any(term.positions != "scored" for term in terms)
        scored = sum(len(t) - 1 if everywhere else t.scored for t in texts) // parts
        whole = sum(isinstance(term.objective, KL) or "logits" in term.reads_reference for term in terms)
        copies = 2 if any(term.needs_alternative for term in terms) else 1
        one = Side(
            row_length(texts[: -(-len(texts) // parts)] * copies),
            copies * scored,
            any(t.needs_logits for t in terms),
            float(whole),
            max(map(len, texts)),
        )
        found += [one] * parts
        members += texts * copies
    together = getattr(stage.gradients, "together", False) and stage.accumulate == 1 and len(found) == 2
    return (_joined(found[0], found[1], row_length(members)),) if together and sum(map(len, members)) <= TOGETHER else tuple(found)


def _joined(a: Side, b: Side, tokens: int) -> Side:
    scored = a.scored + b.scored
    whole = (a.scored * a.whole + b.scored * b.whole) / max(1, scored)
    return Side(tokens, scored, a.logits or b.logits, whole, max(a.longest, b.longest))


def _reference(stage: Train) -> Literal["none", "logp", "logits", "hidden"]:
    reads = {part for term in stage.terms for part in term.reads_reference}
    return "logits" if "logits" in reads else "hidden" if "hidden" in reads else "logp" if reads else "none"
