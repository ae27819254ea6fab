"""Where a model keeps answers: how the gradient of what is to be forgotten spreads over layers, modules and rank dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.data.benchmarks.choice import spread as evenly
from excise.data.encode import encode
from excise.data.example import Example
from excise.errors import InputError
from excise.layout import layout_of
from excise.precision import autocast, evaluating
from excise.scope import ROLES, Role, Scope
from excise.tokens import collate, score

if TYPE_CHECKING:
    from excise.subject import Subject

Array = NDArray[np.float64]
LINEAR: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")
TOP = 0.1
"""Share of the units whose part of the norm is the concentration."""
RESAMPLES = 500
SCHEMA = 1


@dataclass(frozen=True)
class Unit:
    """A linear module of a layer, or one rank dimension of the adapter on it."""

    layer: int
    module: Role
    rank: int | None = None


@dataclass(frozen=True)
class Energies:
    """Squared gradient norms of single examples."""

    modules: tuple[Unit, ...]
    by_module: Array
    """[examples, modules]: over all trained weights of a module (of an adapter: A and B)."""
    weights: Array
    """[modules]: how many numbers each module trains."""
    ranks: tuple[Unit, ...] = ()
    by_rank: Array | None = None
    """[examples, ranks]: of the columns of B; None without an adapter."""


def energies(
    subject: Subject,
    examples: Sequence[Example],
    precision: Literal["float32", "bfloat16"] = "float32",
    advance: Callable[[int], None] = lambda _: None,
) -> Energies:
    """Squared norms of the gradient of each example's mean answer cross-entropy, in the model's linear modules, or in those of its adapter.

    Raises:
        InputError: nothing to train (a quantised base without an adapter), or a gradient that is not a number.
    """
    scope = Scope(layers=tuple(range(subject.depth)), modules=LINEAR)
    texts = [encode(subject.tokenizer, subject.template, example) for example in examples]
    with scope.trainable(subject) as chosen, evaluating(subject.model):
        units = {name: unit for name, unit in _units(subject, chosen).items() if chosen[name].is_floating_point()}
        modules = tuple(sorted(set(units.values()), key=_order))
        place = {unit: i for i, unit in enumerate(modules)}
        factors = {name: units[name] for name in units if ".lora_B." in name}
        ranks = tuple(Unit(u.layer, u.module, k) for name, u in factors.items() for k in range(chosen[name].shape[1]))
        by_module, by_rank = np.zeros((len(texts), len(modules))), np.zeros((len(texts), len(ranks)))
        for number, text in enumerate(texts):
            with autocast(precision, subject.device):
                loss = -score(subject, collate([text], layout_of(subject))).token_logp.mean()
            loss.backward()
            for name, unit in units.items():
                by_module[number, place[unit]] += _energy(chosen[name].grad)
            if ranks:
                by_rank[number] = np.concatenate([_columns(chosen[name]) for name in factors])
            for parameter in chosen.values():
                parameter.grad = None
            if not np.isfinite(by_module[number]).all() or not by_module[number].sum():
                raise InputError(f"example {examples[number].id!r}: its gradient is zero or not a number, so there is nothing to see in this model")
            advance(1)
    weights = np.zeros(len(modules))
    for name, unit in units.items():
        weights[place[unit]] += chosen[name].numel()
    return Energies(modules, by_module, weights, ranks, by_rank if ranks else None)


def _units(subject: Subject, chosen: Mapping[str, nn.Parameter]) -> dict[str, Unit]:
    layer_of = {id(p): i for i, block in enumerate(subject.layers) for p in block.parameters()}
    roles: dict[str, Role] = {name: next(ROLES[part] for part in reversed(name.split(".")) if part in ROLES) for name in chosen}
    return {name: Unit(layer_of[id(parameter)], roles[name]) for name, parameter in chosen.items()}


def _order(unit: Unit) -> tuple[int, int]:
    return unit.layer, LINEAR.index(unit.module)


def _energy(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().square().sum())


def _columns(factor: nn.Parameter) -> Array:
    """Squared norms of the columns of a gradient [out, rank]."""
    if factor.grad is None:
        return np.zeros(factor.shape[1])
    return np.asarray(factor.grad.double().square().sum(dim=0).cpu().numpy())


# Numbers --------------------------------------------------------------------------------------------------------------


def shares(energy: Array) -> Array:
    """Each example's norm distributed over the units: rows sum to 1, so that long answers do not outweigh short ones.

    Args:
        energy: squared norms [examples, units].
    """
    return energy / energy.sum(axis=1, keepdims=True)


def top_share(share: Array, counts: Array, half: NDArray[np.bool_], top: float = TOP) -> float:
    """The part of the squared norm that lies in the ``top`` share of units, 0 to 1 (``top`` where it is even).

    The units are chosen on one half of the examples and measured on the other, both ways round: choosing and measuring on the same
    examples would find a concentration in pure noise.

    Args:
        share: [examples, units].
        counts: how often each example counts [examples].
        half: which half each is in [examples].
    """
    many = max(1, round(top * share.shape[1]))
    found = []
    for side in (half, ~half):
        choosing, measuring = counts * side, counts * ~side
        chosen = np.argsort(-(choosing @ share), kind="stable")[:many]
        found.append(float((measuring @ share)[chosen].sum() / measuring.sum()))
    return sum(found) / 2


def evenness(share: Array, counts: Array) -> float:
    """Entropy of the mean distribution over the units, divided by that of an even one: 1 is even, 0 is all in one unit."""
    mean = counts @ share / counts.sum()
    known = mean[mean > 0]
    return float(-(known * np.log(known)).sum() / np.log(share.shape[1])) if share.shape[1] > 1 else 0.0


def overlap(a: Array, b: Array) -> float:
    """How much two distributions have in common: the sum of the smaller of both, 1 where they are the same."""
    return float(np.minimum(a, b).sum())


def concentration(energy: Array, seed: int = 0) -> dict[str, Any]:
    """``top_share`` and ``evenness`` with 95 % intervals by bootstrap over examples (within each half), and the mean map.

    ``top_share`` is None with fewer than four examples: there are no two halves to speak of.
    """
    share, n = shares(energy), len(energy)
    half = np.arange(n) % 2 == 0
    once = np.ones(n)
    draw = np.random.default_rng(seed)
    draws = [_resampled(half, draw) for _ in range(RESAMPLES)] if n >= 4 else []
    found: dict[str, Any] = {
        "units": share.shape[1],
        "top": max(1, round(TOP * share.shape[1])),
        "map": [round(float(v), 8) for v in share.mean(axis=0)],
    }
    for name, value in (("top_share", top_share), ("evenness", lambda s, c, _: evenness(s, c))):
        values = [value(share, counts, half) for counts in draws]
        interval = [float(v) for v in np.percentile(values, [2.5, 97.5])] if values else None
        known = name == "evenness" or n >= 4
        found[name] = {"value": value(share, once, half) if known else None, "ci95": interval}
    found["halves_overlap"] = overlap(share[half].mean(axis=0), share[~half].mean(axis=0)) if n >= 2 else None
    return found


def _resampled(half: NDArray[np.bool_], draw: np.random.Generator) -> Array:
    """How often each example counts in one resample: as many of each half as there are."""
    counts = np.zeros(len(half))
    for side in (half, ~half):
        places = np.flatnonzero(side)
        counts += np.bincount(draw.choice(places, len(places)), minlength=len(half))
    return counts


# The study ------------------------------------------------------------------------------------------------------------


def chosen_examples(examples: Sequence[Example], limit: int | None) -> list[Example]:
    """So many examples of each label, spread evenly; plain texts have no answer to look at and are refused."""
    if not any(example.prompt for example in examples):
        raise InputError("the study looks at answers, and this split holds plain texts only")
    asked = [example for example in examples if example.prompt]
    if limit is None:
        return asked
    if limit < 1:
        raise InputError(f"--limit is {limit}: at least one example of each label is needed")
    return [e for label in dict.fromkeys(e.label for e in asked) for e in evenly([e for e in asked if e.label == label], limit)]


def study(
    subject: Subject,
    examples: Sequence[Example],
    precision: Literal["float32", "bfloat16"] = "float32",
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """How the gradient of these answers spreads, for each label and for all: concentration, maps, and what labels have in common.

    Returns:
        ``modules``: [[layer, module], ...]; ``ranks``: [[layer, module, rank], ...], empty without an adapter; ``labels``: for each label
        (and ``all``) ``n``, ``answer_tokens`` and ``gradient_norm`` (means) and ``by_module`` and ``by_rank`` as :func:`concentration` gives them;
        ``even``: what ``by_module`` would be if every trained number had the same gradient; ``overlap``: of the labels' maps.
    """
    found = energies(subject, examples, precision, advance)
    lengths = np.array([encode(subject.tokenizer, subject.template, example).scored for example in examples], dtype=np.float64)
    labels = list(dict.fromkeys(example.label for example in examples if example.label))
    rows = {label: np.array([example.label == label for example in examples]) for label in labels} | {"all": np.ones(len(examples), dtype=bool)}
    table: dict[str, Any] = {}
    for label, where in rows.items():
        norms = np.sqrt(found.by_module[where].sum(axis=1))
        table[label] = {
            "n": int(where.sum()),
            "answer_tokens": float(lengths[where].mean()),
            "gradient_norm": float(norms.mean()),
            "by_module": concentration(found.by_module[where], seed),
            "by_rank": None if found.by_rank is None else concentration(found.by_rank[where], seed),
        }
    even = found.weights / found.weights.sum()
    maps = {label: np.array(table[label]["by_module"]["map"]) for label in labels}
    return {
        "schema": SCHEMA,
        "adapter": found.by_rank is not None,
        "modules": [[unit.layer, unit.module] for unit in found.modules],
        "ranks": [[unit.layer, unit.module, unit.rank] for unit in found.ranks],
        "labels": table,
        "even": {"top_share": float(np.sort(even)[::-1][: max(1, round(TOP * len(even)))].sum()), "evenness": evenness(even[None], np.ones(1))},
        "overlap": {a: {b: round(overlap(maps[a], maps[b]), 4) for b in labels} for a in labels},
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """The study as a table for a person."""
    kinds = ["by_module", *(["by_rank"] if found["adapter"] else [])]
    text = [f"{'':8}{'n':>5}{'tokens':>8}{'norm':>10}" + "".join(f"{'top 10 % ' + kind.replace('_', ' '):>30}{'evenness':>22}" for kind in kinds)]
    for label, row in found["labels"].items():
        cells = "".join(f"{_cell(row[kind]['top_share']):>30}{_cell(row[kind]['evenness']):>22}" for kind in kinds)
        text.append(f"{label:8}{row['n']:>5}{row['answer_tokens']:>8.1f}{row['gradient_norm']:>10.3g}{cells}")
    even = found["even"]
    text.append(f"a gradient spread evenly over the numbers: top 10 % by module {even['top_share']:.3f}, evenness {even['evenness']:.3f}")
    return text


def _cell(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "too few"
    interval = "" if value["ci95"] is None else f" [{value['ci95'][0]:.3f}, {value['ci95'][1]:.3f}]"
    return f"{value['value']:.3f}{interval}"
