"""The geometry of the report's plots: where marks, lines and ticks stand. ``templates/plots.html.j2`` draws them as SVG.

A mark differs from its neighbours by shape as well as by colour: ``look`` numbers both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from excise.report.names import readable
from excise.report.result import Better, Score

Point = tuple[float, float]
ScoreRow = tuple[str, Better, Sequence[tuple[str, int, Score | None]]]
"""A score's name and direction, and for each phase or run its name, its look and the score."""

MOST_POINTS = 300
TOWARDS = {"lower": "  ← better", "higher": "  better →", "none": ""}
SHAPES = (
    "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z",  # circle
    "M0,-6.5L6.5,0L0,6.5L-6.5,0Z",  # diamond
    "M-5,-5H5V5H-5Z",  # square
    "M0,-6L6,5H-6Z",  # triangle up
    "M0,6L6,-5H-6Z",  # triangle down
    "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",  # plus
    "M0,-6.5L6,-2L4,5H-4L-6,-2Z",  # pentagon
    "M-6,-3.5L-3.5,-6L0,-2.5L3.5,-6L6,-3.5L2.5,0L6,3.5L3.5,6L0,2.5L-3.5,6L-6,3.5L-2.5,0Z",  # cross
)


@dataclass(frozen=True)
class Frame:
    """The drawing area inside a picture, in picture units."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` drawn from ``start`` to ``end``."""

    label: str
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        step = _nice((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return tuple(Tick(self.at((first + i) * step), _tick_text((first + i) * step, step)) for i in range(count))


@dataclass(frozen=True)
class Pair:
    """One point to plot: what it is called, and its score on each axis."""

    label: str
    look: int
    forget: Score
    retain: Score


@dataclass(frozen=True)
class Mark:
    """A point with its whiskers, in picture units. ``across`` and ``along`` are None where no interval is known."""

    label: str
    look: int
    x: float
    y: float
    across: Point | None
    along: Point | None


@dataclass(frozen=True)
class Scatter:
    title: str
    description: str
    frame: Frame
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]

    @property
    def legend(self) -> tuple[tuple[str, int], ...]:
        return tuple((mark.label, mark.look) for mark in self.marks)


@dataclass(frozen=True)
class BarRow:
    name: str
    better: Better
    y: float
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class IntervalBars:
    title: str
    description: str
    frame: Frame
    x: Axis
    rows: tuple[BarRow, ...]
    legend: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Line:
    label: str
    look: int
    path: str
    end: Point


@dataclass(frozen=True)
class LinePlot:
    title: str
    description: str
    frame: Frame
    x: Axis
    y: Axis
    lines: tuple[Line, ...]

    @property
    def legend(self) -> tuple[tuple[str, int], ...]:
        return tuple((line.label, line.look) for line in self.lines)


@dataclass(frozen=True)
class Shade:
    """Cells of one strength: how opaque, and their outline as one SVG path."""

    opacity: float
    path: str


@dataclass(frozen=True)
class HeatMap:
    title: str
    description: str
    frame: Frame
    shades: tuple[Shade, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    borders: tuple[float, ...]
    """Where one group of columns ends and the next begins."""
    note: str


SHADES = 12


def heat_map(
    title: str, rows: Sequence[str], groups: Sequence[tuple[str, int]], cells: Mapping[tuple[int, int], float], highest: float, what: str
) -> HeatMap:
    """Values from 0 (the ground) to ``highest`` (full colour), in equal steps of the square root, so that small ones can be seen.

    Args:
        groups: names of columns, and how many columns each has.
        cells: (row, column) -> value; what is not there stays empty.
    """
    frame = Frame(360.0, 14.0 * len(rows) + 42.0, 34.0, 354.0, 6.0, 14.0 * len(rows) + 6.0)
    wide, tall = (frame.right - frame.left) / sum(size for _, size in groups), 14.0
    paths: dict[int, list[str]] = {}
    for (row, column), value in sorted(cells.items()):
        step = round(SHADES * math.sqrt(max(value, 0.0) / highest)) if highest > 0 else 0
        if step:
            x, y = frame.left + column * wide, frame.top + row * tall
            paths.setdefault(min(step, SHADES), []).append(f"M{x:.2f},{y:g}h{wide:.2f}v{tall:g}h-{wide:.2f}Z")
    starts = [frame.left + wide * sum(size for _, size in groups[:i]) for i in range(len(groups))]
    columns = tuple(Tick(round(start + wide * size / 2, 2), name) for start, (name, size) in zip(starts, groups, strict=True))
    every = max(1, math.ceil(len(rows) / 16))
    labels = tuple(Tick(frame.top + tall * (i + 0.5), name) for i, name in enumerate(rows) if i % every == 0)
    (row, column), top = max(cells.items(), key=lambda item: item[1])
    name = next(name for i, (name, _) in enumerate(groups) if column < sum(size for _, size in groups[: i + 1]))
    description = f"{title}: {what}, strongest in layer {rows[row]}, {name}: {readable(top)}."
    shades = tuple(Shade(round(step / SHADES, 3), "".join(path)) for step, path in sorted(paths.items()))
    note = f"{what}; full colour: {readable(highest)}"
    return HeatMap(title, description, frame, shades, labels, columns, tuple(round(start, 2) for start in starts[1:]), note)


def scatter(x_name: str, y_name: str, pairs: Sequence[Pair]) -> Scatter:
    """Forget (across) against retain (up), with the 95 % intervals as whiskers."""
    frame = Frame(360.0, 310.0, 56.0, 346.0, 14.0, 262.0)
    x = Axis(
        x_name + TOWARDS[pairs[0].forget.better],
        *_extent([s for p in pairs for s in _ends(p.forget)], unit=True),
        frame.left,
        frame.right,
    )
    y = Axis(
        y_name + TOWARDS[pairs[0].retain.better],
        *_extent([s for p in pairs for s in _ends(p.retain)], unit=True),
        frame.bottom,
        frame.top,
    )
    marks: list[Mark] = []
    sentences: list[str] = []
    for pair in pairs:
        if pair.forget.value is None or pair.retain.value is None:
            continue
        across, along = _whisker(x, pair.forget), _whisker(y, pair.retain)
        marks.append(Mark(pair.label, pair.look, x.at(pair.forget.value), y.at(pair.retain.value), across, along))
        sentences.append(f"{pair.label}: {x_name} {readable(pair.forget.value)}, {y_name} {readable(pair.retain.value)}.")
    return Scatter(f"{x_name} against {y_name}", " ".join(sentences), frame, x, y, tuple(marks))


def interval_bars(rows: Sequence[ScoreRow]) -> IntervalBars:
    """One row for each score between 0 and 1; in it one mark for each phase or run."""
    legend = dict.fromkeys((label, look) for _, _, cells in rows for label, look, score in cells if score and score.value is not None)
    gap = 14.0
    height = 36.0 + gap * max(1, len(legend))
    frame = Frame(360.0, height * len(rows) + 34.0, 12.0, 346.0, 8.0, height * len(rows) + 8.0)
    x = Axis("", 0.0, 1.0, frame.left, frame.right)
    drawn: list[BarRow] = []
    sentences: list[str] = []
    for index, (name, better, cells) in enumerate(rows):
        top = frame.top + index * height
        known = [(label, look, score) for label, look, score in cells if score is not None and score.value is not None]
        marks = tuple(
            Mark(label, look, x.at(score.value or 0.0), top + 28 + gap * place, _whisker(x, score), None)
            for place, (label, look, score) in enumerate(known)
        )
        drawn.append(BarRow(name, better, top + 14, marks))
        sentences.append(f"{name}: " + ", ".join(f"{label} {readable(score.value)}" for label, _, score in known) + ".")
    return IntervalBars("Scores with their 95 % intervals", " ".join(sentences), frame, x, tuple(drawn), tuple(legend))


def line_plot(title: str, lines: Sequence[tuple[str, int, Sequence[Point]]], unit: bool = False, along: str = "step") -> LinePlot:
    """Values over steps (or what ``along`` says). ``unit``: the values are scores, and the axis shows 0 to 1 where they fit."""
    frame = Frame(280.0, 160.0, 50.0, 270.0, 10.0, 128.0)
    points = [point for _, _, found in lines for point in found]
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    x = Axis(along, first, last if last > first else first + 1, frame.left, frame.right)
    y = Axis("", *_extent([p[1] for p in points], unit), frame.bottom, frame.top)
    drawn: list[Line] = []
    sentences: list[str] = []
    for label, look, found in lines:
        placed = [(x.at(step), y.at(value)) for step, value in _thinned(found)]
        path = "M" + "L".join(f"{a:g},{b:g}" for a, b in placed)
        drawn.append(Line(label, look, path, placed[-1]))
        sentences.append(f"{label}: {readable(found[0][1])} at {along} {found[0][0]:g}, {readable(found[-1][1])} at {along} {found[-1][0]:g}.")
    return LinePlot(title, " ".join(sentences), frame, x, y, tuple(drawn))


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most about ``MOST_POINTS`` of the points, the last one always among them."""
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    return [*points[:-1:stride], points[-1]]


def _ends(score: Score) -> list[float]:
    return [value for value in (score.value, *(score.interval or ())) if value is not None]


def _whisker(axis: Axis, score: Score) -> Point | None:
    return None if score.interval is None else (axis.at(score.interval[0]), axis.at(score.interval[1]))


def _extent(values: Sequence[float], unit: bool) -> tuple[float, float]:
    """Where an axis begins and ends: 0 to 1 for scores that fit, otherwise a little beyond the values."""
    low, high = min(values), max(values)
    if unit and low >= 0 and high <= 1:
        return 0.0, 1.0
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _nice(step: float) -> float:
    """The next round number (1, 2, 2.5 or 5 times a power of ten) that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def _tick_text(value: float, step: float) -> str:
    if value == 0 or abs(value) < step * 1e-6:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        text = f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e").replace(".0e", "e")
    else:
        text = f"{value:.4g}"
    return text.replace("-", "\u2212")
