"""The feature table as one HTML file: no scripts, no network, every text escaped."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jinja2

from excise.features.table import FeatureTable

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --own: #b3261e; --shared: #8a6d00; --rule: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.token { display: inline-block; margin: 0 .3rem .2rem 0; padding: 0 .3rem; border: 1px solid var(--rule); border-radius: .3rem; white-space: pre; }
.concept_only { border-color: var(--own); color: var(--own); }
.both { border-color: var(--shared); color: var(--shared); }
tr.faint { opacity: .6; }
small { color: #888; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ table.n }} tokens ({{ table.counts.concept_only }} only in the concept's texts, {{ table.counts.both }} in both,
{{ table.counts.neutral_only }} only in neutral ones) in {{ table.rank }} features, seed {{ table.seed }};
loss {{ "%.2f" | format(table.loss) }} after {{ table.iterations }} iterations.
Features below a mass ratio of {{ ratio }} are faint.</p>
<p><span class="token concept_only">only the concept's</span> <span class="token both">both</span> <span class="token">only neutral</span></p>
<table>
<thead>
<tr><th class="number">feature</th><th class="number">ratio</th><th class="number">own / both / neutral</th><th>strongest tokens</th></tr>
</thead>
<tbody>
{% for feature in table.features %}
<tr{% if feature.ratio < ratio %} class="faint"{% endif %}>
<td class="number">{{ feature.index }}</td>
<td class="number">{{ "%.2f" | format(feature.ratio) }}</td>
{% set shares = feature.shares %}
<td class="number">
{{ "%.0f / %.0f / %.0f %%" | format(100 * shares.concept_only, 100 * shares.both, 100 * shares.neutral_only) }}
</td>
<td>
{% for token in feature.tokens %}
<span class="token {{ token.kind }}" title="{{ "%.4f" | format(token.coefficient) }}">{{ token.text | clean }}</span>
{% endfor %}
</td>
</tr>
{% endfor %}
</tbody>
</table>
</body>
</html>
"""


def page(table: FeatureTable, title: str, ratio: float) -> str:
    """The page as text."""
    return _template().render(table=table, title=title, ratio=ratio)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["clean"] = _clean
    return environment.from_string(PAGE)


def _clean(text: Any) -> str:
    """A token without signs that HTML may not hold."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))
