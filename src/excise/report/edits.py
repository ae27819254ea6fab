"""What stages that edit weights did, as the page shows it: features with their tokens, strengths that were tried, ranks that were touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excise.errors import InputError
from excise.report import plots
from excise.report.names import readable
from excise.report.result import Result

TITLES = {
    "edit_embeddings": "EMBER: the concept's directions in the embeddings",
    "edit_mlp": "SNMF: the concept's features in the MLPs",
    "prune_ranks": "Pruned rank dimensions",
    "negate_task_vector": "Negated task vector",
}
FRACTIONS = ("efficacy", "general", "specificity", "coherence", "overall")


@dataclass(frozen=True)
class Feature:
    """One feature that was chosen."""

    index: str
    ratio: float | None
    score: float | None
    words: str


@dataclass(frozen=True)
class Edit:
    """One stage's edit."""

    title: str
    facts: tuple[tuple[str, str], ...]
    features: tuple[Feature, ...]
    moved: tuple[tuple[str, float], ...]
    """The tokens that moved farthest, and how far."""
    trials: tuple[tuple[float, tuple[float | None, ...], str], ...]
    """Each strength that was tried: the fractions of :data:`FRACTIONS`, and a note."""
    ranks: plots.HeatMap | None


def edits(result: Result) -> tuple[Edit, ...]:
    """Every edit of a run, in order.

    Raises:
        InputError: a record of an edit that is broken.
    """
    try:
        return tuple(_edit(row) for row in result.edits)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{result.folder}/result.json: the record of an edit is broken ({type(error).__name__}: {error})") from None


def _edit(row: Mapping[str, Any]) -> Edit:
    name = str(row.get("name", ""))
    title = TITLES.get(name, name.replace("_", " "))
    if "ranks" in row:
        return Edit(title, _touched(row), (), (), (), _map(title, row["ranks"], row["rank"]))
    found: Mapping[str, Any] = row["edit"]
    facts = [("strength", readable(float(found["strength"])))] if "strength" in found else []
    facts += [("features chosen by", str(found["chosen_by"]))] if "chosen_by" in found else []
    if moved := found.get("moved"):
        facts.append(("tokens moved", f"{moved['tokens']} ({100 * moved['share_of_vocabulary']:.2f} % of the vocabulary)"))
        facts.append(("mean norm of their embeddings", f"{readable(moved['mean_norm_before'])} before, {readable(moved['mean_norm_after'])} after"))
    layers: Sequence[Mapping[str, Any]] = found.get("layers", ())
    if layers:
        facts.append(("neurons", ", ".join(f"layer {layer['layer']}: {layer['neurons']} of {layer['of']}" for layer in layers)))
    features = [_feature(f, "") for f in found.get("features", ())]
    features += [_feature(f, f"{layer['layer']}.") for layer in layers for f in layer.get("features", ())]
    search = found.get("search") or {}
    if search.get("warning"):
        facts.append(("warning", str(search["warning"])))
    trials = tuple((float(t["strength"]), tuple(t.get(key) for key in FRACTIONS), str(t.get("note", ""))) for t in search.get("trials", ()))
    tokens = tuple((str(t["text"]), float(t["moved"])) for t in found.get("strongest", ()))
    return Edit(title, tuple(facts), tuple(features), tokens, trials, None)


def _feature(row: Mapping[str, Any], prefix: str) -> Feature:
    score = row.get("score")
    return Feature(f"{prefix}{row['index']}", float(row["ratio"]), None if score is None else float(score), str(row.get("words", "")))


def _touched(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    ranks, sizes = row["ranks"], row["rank"]
    count, of = sum(map(len, ranks.values())), sum(sizes.values())
    places = sum(bool(chosen) for chosen in ranks.values())
    return (("rank dimensions", f"{count} of {of}, in {places} of {len(sizes)} modules"),)


def _map(title: str, ranks: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> plots.HeatMap | None:
    """Layers down, modules across: what share of each module's rank dimensions was touched."""
    if not any(ranks.values()):
        return None
    places = {place: (int(place.split(".")[0]), place.split(".", 1)[1]) for place in sizes}
    layers = sorted({layer for layer, _ in places.values()})
    modules = list(dict.fromkeys(module for _, module in places.values()))
    cells = {(layers.index(layer), modules.index(m)): len(ranks.get(place, ())) / max(1, sizes[place]) for place, (layer, m) in places.items()}
    return plots.heat_map(title, [str(layer) for layer in layers], [(m, 1) for m in modules], cells, 1.0, "share of the rank dimensions touched")
