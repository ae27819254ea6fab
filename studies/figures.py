"""The report's pictures as files of their own, with their colours and their legend."""

from __future__ import annotations

import html
import re
from typing import Any

from excise.report import plots
from excise.report.html import page_environment

COLOURS = ("#5f6873", "#0067a8", "#00795c", "#c24e00", "#8c3f86", "#8a6a00", "#2b2f9c", "#a3123a")
STYLE = ".grid{stroke:#d5d9de}.tick{fill:#5f6873}.mark{stroke:#fff;stroke-width:.75}.whisker{stroke-width:1.5;stroke-linecap:round}"
LINE = 18.0


def standalone(macro: str, plot: Any) -> str:
    """An SVG file of a plot that a macro of the report's draws."""
    template = page_environment().from_string(f'{{% import "plots.html.j2" as plots %}}{{{{ plots.{macro}("figure", plot, shapes) }}}}')
    drawn = template.render(plot=plot, shapes=plots.SHAPES)
    begin, end = drawn.index("<svg"), drawn.index("</svg>")
    legend = list(dict.fromkeys(plot.legend))
    colours = "".join(f".mark.look-{n}{{fill:{colour}}}.whisker.look-{n}{{stroke:{colour}}}" for n, colour in enumerate(COLOURS))
    width, height = plot.frame.width, plot.frame.height + LINE * len(legend)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" fill="#333" viewBox="0 0 {width} {height}"'
    body = re.sub(r'<svg( class="plot")?( role="img") viewBox="[^"]*"', rf"{opening}\2", drawn[begin:end], count=1)
    head, rest = body.split("</desc>", 1)
    entries = [
        f'<path class="mark look-{look}" transform="translate(20,{plot.frame.height + LINE * (n + 0.5):g})" d="{plots.SHAPES[look]}"/>'
        f'<text x="34" y="{plot.frame.height + LINE * (n + 0.5) + 4:g}">{html.escape(label)}</text>'
        for n, (label, look) in enumerate(legend)
    ]
    return f"{head}</desc><style>{STYLE}{colours}</style>{rest}{''.join(entries)}</svg>\n"
