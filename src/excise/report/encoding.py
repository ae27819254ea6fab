"""The figures of an encoding study: one heat map for each label, layers down, modules across."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import InputError
from excise.files import read_json, write_text
from excise.report import plots

FILE = "encoding.json"


@dataclass(frozen=True)
class Study:
    """What the page shows of a study."""

    maps: tuple[plots.HeatMap, ...]
    rank_maps: tuple[plots.HeatMap, ...]
    rows: tuple[tuple[str, Mapping[str, Any]], ...]
    even: Mapping[str, float]
    overlap: tuple[tuple[str, tuple[float, ...]], ...]


def load_study(folder: Path) -> Study | None:
    """The study in a run folder (``encoding.json``, or in a folder ``encoding``); None where there is none."""
    found = next((place for place in (folder / FILE, folder / "encoding" / FILE) if place.is_file()), None)
    return None if found is None else prepared(read_json(found))


def prepared(found: Mapping[str, Any]) -> Study:
    """A study as figures and rows.

    Raises:
        InputError: it is no study, or one of a later version.
    """
    try:
        if found["schema"] != 1:
            raise InputError(f"{FILE} has schema {found['schema']}, and this version of excise reads 1")
        labels: Mapping[str, Any] = found["labels"]
        modules = [(int(layer), str(module), None) for layer, module in found["modules"]]
        ranks = [(int(layer), str(module), int(rank)) for layer, module, rank in found["ranks"]]
        highest = max(max(row["by_module"]["map"]) for row in labels.values())
        return Study(
            tuple(_map(label, modules, row["by_module"]["map"], highest) for label, row in labels.items()),
            tuple(_ranked(label, ranks, row["by_rank"]["map"]) for label, row in labels.items()) if ranks else (),
            tuple(labels.items()),
            found["even"],
            tuple((label, tuple(row.values())) for label, row in found["overlap"].items()),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{FILE} is no encoding study of excise ({type(error).__name__}: {error})") from None


def _map(label: str, units: list[tuple[int, str, None]], values: list[float], highest: float) -> plots.HeatMap:
    layers = sorted({layer for layer, _, _ in units})
    modules = list(dict.fromkeys(module for _, module, _ in units))
    cells = {(layers.index(layer), modules.index(module)): value for (layer, module, _), value in zip(units, values, strict=True)}
    return plots.heat_map(
        label, [str(layer) for layer in layers], [(module, 1) for module in modules], cells, highest, "share of the squared gradient norm"
    )


def _ranked(label: str, units: list[tuple[int, str, int]], values: list[float]) -> plots.HeatMap:
    """Within each module the rank dimensions from the strongest to the weakest."""
    layers = sorted({layer for layer, _, _ in units})
    modules = list(dict.fromkeys(module for _, module, _ in units))
    grouped: dict[tuple[int, str], list[float]] = {}
    for (layer, module, _), value in zip(units, values, strict=True):
        grouped.setdefault((layer, module), []).append(value)
    width = max(map(len, grouped.values()))
    cells = {
        (layers.index(layer), modules.index(module) * width + place): value
        for (layer, module), found in grouped.items()
        for place, value in enumerate(sorted(found, reverse=True))
    }
    return plots.heat_map(
        label, [str(layer) for layer in layers], [(module, width) for module in modules], cells, max(values), "rank dimensions, strongest first"
    )


def write_page(found: Mapping[str, Any], place: Path, title: str) -> Path:
    """A study as a page of its own."""
    from excise.report.html import page_environment

    write_text(place, page_environment().get_template("encoding.html.j2").render(study=prepared(found), title=title))
    return place
