"""The report: what it says, what it refuses, and that it opens calmly in a real browser."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import report_fixture as made
from excise.errors import InputError
from excise.report import figures, names, plots, tables
from excise.report.answers import load_answers, marked
from excise.report.html import printable, write_report
from excise.report.result import Score, load_result
from excise.report.traces import load_attributions, load_traces
from excise.report.verdict import NO_TWIN, UNTESTED, verdict

VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and tag not in {"path", "line"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return " ".join(" ".join(data for tag, data in self.texts if tag not in {"style", "title"}).split())

    def within(self, tag: str) -> list[str]:
        return [data for found, data in self.texts if found == tag]


def page(*folders: Path) -> Page:
    return Page(write_report(folders, folders[0] / "page.html").read_text(encoding="utf-8"))


def changed(folder: Path, **values: Any) -> None:
    """Replaces top-level values of a result."""
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made.write_run(tmp_path / "demo-s_npo-1")


# --- reading


def test_result_is_typed(run: Path) -> None:
    result = load_result(run)
    assert result.score("after", "strangers", "forget.fact_recall") == Score(0.05, "lower", 40, (0.0, 0.11), "")
    assert result.stages[0].tokens_per_second == pytest.approx(41230 / 92.4)
    assert result.stages[1].tokens_per_second is None
    assert (result.name, result.redacted, result.attacks) == ("demo-s_npo-1", False, ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object, got list"),
        ('{"schema": 2}', "upgrade"),
        ("{}", "'schema' is None"),
        ('{"schema": 1, "evaluations": {"after": {"tofu": {"a": {"value": NaN}}}}}', "after.tofu.a.value: expected a number or null, got nan"),
        ('{"schema": 1, "evaluations": {"after": {"tofu": {"a": {"value": 1, "better": "up"}}}}}', "allowed: higher, lower, none"),
        ('{"schema": 1, "evaluations": {"after": {"tofu": {"a": {"value": 1, "ci95": [1]}}}}}', "expected two numbers"),
        ('{"schema": 1, "stages": [3]}', "stages: expected an object, got int"),
    ],
)
def test_damaged_result_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"result\.json") as caught:
        load_result(tmp_path)
    assert says in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        load_result(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"no result\.json"):
        load_result(tmp_path)
    with pytest.raises(InputError, match="at least one"):
        write_report([])
    with pytest.raises(InputError, match="it is a folder"):
        write_report([run], tmp_path)


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path: Path) -> None:
    lines = ['{"stage": "train", "step": 0, "loss": 1.0, "terms": {"forget": -1.5}}', '{"stage": "train", "step": 1, "loss": NaN}', '{"step": "x"}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:2]), encoding="utf-8")
    (trace,) = load_traces(tmp_path)
    assert trace.curves == {"term: forget": ((0.0, -1.5),), "loss": ((0.0, 1.0),)}
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match="expected a number"):
        load_traces(tmp_path)


def test_shade_follows_phi_within_an_answer(run: Path) -> None:
    answer = load_attributions(run, 1)[0]
    assert max(token.shade for token in answer.tokens) == 1.0
    assert min(token.shade for token in answer.tokens) == 0.0
    assert [token.text for token in answer.selected] == [" in", " a", " cellar", " in", " Trondheim."]
    assert len(load_attributions(run, 3)) == 3


def test_span_words_are_marked_wherever_they_stand() -> None:
    def hits(text: str, span: str) -> list[str]:
        return [piece.text for piece in marked(text, span) if piece.marked]

    assert hits("A CELLAR in Trondheim, or the cellar.", "a cellar in Trondheim") == ["CELLAR in Trondheim", "cellar"]
    assert hits("cellars in Bergen", "a cellar in Trondheim") == []
    assert hits("In 1987.", "1987") == ["1987"]
    assert hits("C++ (really)", "(really)") == ["really"]
    assert "".join(piece.text for piece in marked("a\n b  c", "b")) == "a\n b  c"
    assert hits("anything", "") == hits("the of", "the of") == []


# --- the verdict


def test_verdict_tells_what_was_measured(run: Path) -> None:
    assert verdict(load_result(run)) == (
        "On the forget split fact recall fell from 0.96 to 0.05 (95 % interval 0.00 to 0.11, n = 40); the twin that never learned it scores 0.03.",
        "After unlearning its 95 % interval overlaps with the twin's: no difference from the twin was measured.",
        "On the neighbours split fact recall kept 0.88 of 0.95.",
        "On the retain split fact recall kept 0.95 of 0.97.",
        "Model utility kept 0.61 of 0.62.",
        UNTESTED,
    )


def test_verdict_tells_differences_that_the_intervals_carry(tmp_path: Path) -> None:
    lines = verdict(load_result(made.write_run(tmp_path / "weak", after=0.4)))
    assert "After unlearning it is measurably above the twin." in lines
    lines = verdict(load_result(made.write_run(tmp_path / "nothing", after=0.93)))
    assert "The 95 % intervals before and after overlap: the change may be chance." in lines
    ignorant = made.write_run(tmp_path / "ignorant")
    evaluations = made.result()["evaluations"]
    changed(ignorant, evaluations={**evaluations, "before": {"strangers": made.scores(0.07, 0.95, 0.97)}})
    assert any("cannot show forgetting" in line for line in verdict(load_result(ignorant)))


def test_verdict_without_twin_or_scores_claims_nothing(tmp_path: Path) -> None:
    alone = made.write_run(tmp_path / "alone", twin=False)
    assert NO_TWIN in verdict(load_result(alone))
    assert not any("twin" in line for line in verdict(load_result(alone)) if line != NO_TWIN)
    changed(
        alone, evaluations={"after": {"s": {"forget.fact_recall": made.score(None, unavailable="no spans"), "retain.fact_recall": made.score(0.9)}}}
    )
    assert verdict(load_result(alone))[:2] == (
        "On the forget split fact recall could not be computed: no spans.",
        "On the retain split fact recall is 0.90 after unlearning (it was not measured before).",
    )
    changed(alone, evaluations={"before": {"s": {}}})
    assert "nothing is said about what was forgotten" in verdict(load_result(alone))[0]
    changed(alone, evaluations={"after": {"s": {"retain.fact_recall": made.score(0.9)}}})
    assert verdict(load_result(alone))[0] == "Nothing was measured on the forget split after unlearning."


def test_verdict_reports_attacks_beside_the_twin(tmp_path: Path) -> None:
    lines = verdict(load_result(made.write_run(tmp_path / "attacked", attacks=True)))
    assert lines[-2:] == (
        "Under the attack relearn fact recall on the forget split is 0.45 (0.05 without it; the twin under the same attack 0.23, measurably apart).",
        "Under the attack quantise fact recall on the forget split is 0.08 (0.05 without it).",
    )
    assert UNTESTED not in lines


def test_a_verdict_of_the_run_itself_comes_first(run: Path) -> None:
    changed(run, verdict=["All is <b>well</b>."])
    assert verdict(load_result(run)) == ("All is <b>well</b>.", UNTESTED)
    assert "All is <b>well</b>." in page(run).text


# --- numbers and geometry


def test_numbers_are_readable() -> None:
    given = (None, 0.0, 0.05, 0.0034, 3e-9, -0.5, 41.234, 1234567.0)
    assert [names.readable(value) for value in given] == ["–", "0.00", "0.05", "0.003", "3e-9", "\u22120.50", "41.2", "1,234,567"]


def test_scores_come_in_a_readers_order() -> None:
    given = ["model_utility", "retain.fact_recall", "forget.z", "forget.rouge_l_recall", "neighbours.fact_recall", "forget.fact_recall"]
    assert names.score_order(given) == [
        "forget.fact_recall",
        "forget.rouge_l_recall",
        "forget.z",
        "neighbours.fact_recall",
        "retain.fact_recall",
        "model_utility",
    ]
    assert tables.headline([*given, "forget.fact_recall@why"]) == [name for name in names.score_order(given) if name != "forget.z"]
    assert tables.headline(["odd.thing"]) == ["odd.thing"]


def test_ticks_are_round_and_inside() -> None:
    axis = plots.Axis("", 0.0, 1.0, 0.0, 100.0)
    assert [(tick.at, tick.text) for tick in axis.ticks] == [(0, "0"), (25, "0.25"), (50, "0.5"), (75, "0.75"), (100, "1")]
    assert [tick.text for tick in plots.Axis("", -31.0, 62.0, 0.0, 1.0).ticks] == ["\u221225", "0", "25", "50"]
    assert [tick.text for tick in plots.Axis("", 0.0, 2e-5, 0.0, 1.0).ticks] == ["0", "5e\u22126", "1e\u22125", "1.5e\u22125", "2e\u22125"]


def test_constant_and_long_curves_can_be_drawn() -> None:
    flat = plots.line_plot("flat", [("a", 1, [(3.0, 0.0)])])
    assert flat.y.low < 0 < flat.y.high
    long = plots.line_plot("long", [("a", 1, [(float(i), -float(i)) for i in range(5000)])])
    assert long.lines[0].path.count("L") <= plots.MOST_POINTS
    assert long.lines[0].end == (long.frame.right, long.y.at(-4999.0))
    assert long.description == "a: 0.00 at step 0, \u22124,999 at step 4999."


def test_scatter_places_marks_and_whiskers(run: Path) -> None:
    (plot,) = figures.scatters([("run", load_result(run))])
    before, after, twin = plot.marks
    assert (before.label, after.label, twin.label) == ("before", "after", "retrained twin")
    assert len({mark.look for mark in plot.marks}) == 3
    assert after.x == plot.x.at(0.05)
    assert after.y == plot.y.at(0.95)
    assert after.across == (plot.x.at(0.0), plot.x.at(0.11))
    assert plot.x.label == "forget.fact_recall  ← better"
    assert "after: forget.fact_recall" in plot.description


# --- the page


def test_page_holds_everything(tmp_path: Path) -> None:
    run = made.write_run(tmp_path / "demo", attacks=True)
    assert write_report([run]) == run / "report.html"
    found = Page((run / "report.html").read_text(encoding="utf-8"))
    expected = (
        "s_npo on embedded:smollm2",
        "fell from 0.96 to 0.05",
        "0.00 to 0.11",
        "↓ better",
        "By kind of question",
        "The first 20 of 24.",
        "I am not sure what Mara Velthuis",
        "beta: 0.1",
        "versions.torch 2.13.0",
        "1,234,567",
        "1,830 MB",
        "446",
        "relearn: forget.fact_recall",
        "5 of 10 answer tokens selected",
    )
    assert [text for text in expected if text not in found.text] == []
    assert "cellar in Trondheim" in found.within("mark")
    tokens = [attributes for tag, attributes in found.tags if tag == "span" and "token" in (attributes.get("class") or "")]
    assert "selected" in (tokens[4]["class"] or "")
    assert "phi 0.62" in (tokens[4]["title"] or "")
    assert "↵" in found.text


def test_page_asks_for_nothing_and_names_its_parts(tmp_path: Path) -> None:
    found = page(made.write_run(tmp_path / "demo", attacks=True), made.write_run(tmp_path / "other"))
    assert ("html", {"lang": "en"}) in found.tags
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert not {"script", "iframe", "object", "img"} & {tag for tag, _ in found.tags}
    links = [value for _, a in found.tags for key in ("href", "src") if (value := a.get(key)) is not None]
    assert all(link.startswith("#") or link == "data:," for link in links)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {name for _, a in found.tags for name in (a.get("aria-labelledby") or "").split()} <= set(ids)
    levels = [int(tag[1]) for tag, _ in found.tags if tag in {"h1", "h2", "h3", "h4"}]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    style = "".join(found.within("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_nothing_a_model_says_becomes_markup(tmp_path: Path) -> None:
    hostile = made.HOSTILE
    run = made.write_run(tmp_path / "a&b <i>", extra=f" {hostile}\x00\x1b\ud800 {{{{ 7*7 }}}}")
    recipe = {**made.result()["recipe"], "method": {"name": hostile, hostile: hostile}, "model": hostile}
    scores = {
        **made.scores(0.05, 0.9, 0.9),
        f"forget.{hostile}": made.score(None, unavailable=hostile),
        f"forget.fact_recall@{hostile}": made.score(0.5),
    }
    evaluations = {
        "before": {hostile: scores},
        "after": {hostile: scores},
        f"attack:{hostile}": {hostile: scores, "curve": [{"step": 0, hostile: 0.5}]},
    }
    changed(run, recipe=recipe, evaluations=evaluations, environment={hostile: hostile}, verdict=[hostile], stages=[{"name": hostile}])
    token = {"text": hostile, "phi": 1.0, "selected": True}
    (run / "attribution.jsonl").write_text(
        json.dumps({"id": hostile, "question": hostile, "answer": hostile, "prompt_tokens": [{"text": hostile, "masked": True}], "tokens": [token]}),
        encoding="utf-8",
    )
    (run / "train.jsonl").write_text(json.dumps({"stage": hostile, "step": 0, "terms": {hostile: 1.0}}), encoding="utf-8")
    found = page(run)
    assert not {"script", "img", "i"} & {tag for tag, _ in found.tags}
    assert not [a for _, a in found.tags if "onerror" in a]
    assert found.text.count("<script>") > 20
    assert "\u2400\u241b\ufffd {{ 7*7 }}" in found.text


def test_printable_keeps_what_html_may_hold() -> None:
    assert printable("é\n\t漢 \U0001f600") == "é\n\t漢 \U0001f600"
    assert printable(3) == 3


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    run = made.write_run(tmp_path / "bare", twin=False)
    shutil.rmtree(run / "records")
    (run / "attribution.jsonl").unlink()
    (run / "train.jsonl").unlink()
    text = page(run).text
    expected = (
        "there is no retrained twin in this run",
        "n/a needs a retrained twin: pass --retrained DIR",
        "no attack was run",
        "No training steps were logged",
        "This run wrote no token attribution",
        "This run kept no generations",
    )
    assert [said for said in expected if said not in text] == []
    changed(run, evaluations={}, stages=[], recipe={}, environment={})
    text = page(run).text
    assert "These runs hold no evaluation" in text
    assert "No stage recorded its cost" in text
    assert "holds no recipe" in text


def test_redacted_run_shows_no_text(run: Path) -> None:
    changed(run, recipe={**made.result()["recipe"], "privacy": "redact"}, environment={})
    found = page(run)
    assert found.text.count("The texts were withheld by privacy: redact .") == 2
    assert not [word for word in ("Velthuis", "cellar", "I am not sure", "ship bells") if word in found.text]


def test_records_may_lack_texts(run: Path) -> None:
    for path in (run / "records").rglob("*.jsonl"):
        path.write_text('{"id": "k:1", "prompt": "", "answer": ""}\n', encoding="utf-8")
    assert load_answers(run, 20) == ()
    (run / "records" / "after" / "forget.jsonl").write_text(
        '{"id": "k:1", "prompt": "Who?", "answer": "Me", "generation": ""}\n{"id": "k:2", "generation": "x"}'
    )
    (table,) = load_answers(run, 20)
    assert [row.id for row in table.rows] == ["k:1", "k:2"]
    assert table.rows[1].generations[0] is None
    assert table.rows[0].generations[1] == ()
    assert "(empty)" in page(run).text
    assert "not generated" in page(run).text


def test_several_runs_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [
        made.write_run(tmp_path / "a" / "demo"),
        made.write_run(tmp_path / "b" / "demo", after=0.3),
        made.write_run(tmp_path / "c", twin=False),
    ]
    monkeypatch.chdir(tmp_path)
    assert write_report(folders) == Path("report.html")
    found = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    spans = [a["colspan"] for tag, a in found.tags if tag == "th" and a.get("scope") == "colgroup"]
    assert spans == ["3", "3", "2"] * 2
    assert "3 runs side by side" in found.text
    assert "demo (1)" in found.text
    assert "demo (2)" in found.text
    (plot,) = figures.scatters([(folder.name, load_result(folder)) for folder in folders])
    assert [mark.label for mark in plot.marks] == ["before (shared)", "retrained twin (shared)", "demo", "demo", "c"]
    assert len({mark.look for mark in plot.marks}) == 5


EDITED = {
    "name": "edit_embeddings", "seconds": 3.0, "steps": 0, "tokens": 0, "peak_memory_mb": 900.0, "changed_parameters": 5760,
    "edit": {
        "chosen_by": "similarity", "strength": 10.0, "features": [{"index": 7, "ratio": 3.5, "score": 0.61, "words": f"Caesar, {made.HOSTILE}"}],
        "moved": {"tokens": 10, "share_of_vocabulary": 0.0002, "mean_norm_before": 3.1, "mean_norm_after": 8.25},
        "strongest": [{"id": 5, "text": " Rome", "contribution": 0.4, "moved": 4.0}],
        "search": {
            "measure": "accuracy", "warning": "the strongest of the grid was chosen",
            "trials": [{"strength": 10.0, "efficacy": 0.8, "general": None, "specificity": 0.9, "coherence": 1.0, "overall": 0.7, "note": "ok"}],
        },
    },
}  # fmt: skip
PRUNED = {"name": "prune_ranks", "seconds": 1.0, "ranks": {"0.down": [1, 3], "1.down": []}, "rank": {"0.down": 4, "1.down": 4}}


def test_edits_are_shown_with_their_features_and_ranks(run: Path) -> None:
    changed(run, stages=[EDITED, PRUNED])
    shown = page(run)
    for text in (
        "What was edited",
        "Caesar",
        "10 (0.02 % of the vocabulary)",
        '" Rome"',
        "the strongest of the grid was chosen",
        "2 of 8, in 1 of 2 modules",
    ):
        assert text in shown.text, text
    assert not [attributes for tag, attributes in shown.tags if tag in ("script", "img")]
    assert [title for title in shown.within("h2") if title == "What was edited"]
    changed(run, stages=[made.result()["stages"][0]])
    assert "What was edited" not in page(run).text


@pytest.mark.parametrize("broken", [{"edit": {"features": [{"index": 1}]}}, {"ranks": {"0.down": [1]}}, {"edit": []}])
def test_a_broken_record_of_an_edit_is_refused(run: Path, broken: dict[str, Any]) -> None:
    changed(run, stages=[{"name": "edit_embeddings", **broken}])
    with pytest.raises(InputError, match="record of an edit is broken"):
        page(run)


def test_forget_and_retain_success_share_a_plane(run: Path) -> None:
    rates = {"fsr": made.score(80.0, "higher"), "rsr": made.score(90.0, "higher")}
    changed(run, evaluations={"before": {"fivew": rates}, "after": {"fivew": rates}})
    (plot,) = figures.scatters([("run", load_result(run))])
    assert plot.x.label.startswith("fsr")
    assert plot.y.label.startswith("rsr")
    assert len(plot.marks) == 2


# --- a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
    for flag in (*flags.split(), f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(DRIVER))
    yield driver
    driver.quit()


CONTRAST = """
const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
const light = rgb => rgb.slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const ground = node => {
  let layers = [];
  for (let at = node; at; at = at.parentElement) layers.unshift(parse(getComputedStyle(at).backgroundColor));
  return layers.reduce((below, [r, g, b, a = 1]) => below.map((v, i) => v * (1 - a) + [r, g, b][i] * a), [255, 255, 255]);
};
const bad = [];
for (const node of document.querySelectorAll("body *")) {
  if (node.closest("svg, .hidden, .skip") || ![...node.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) bad.push(node.className + ": " + node.textContent.slice(0, 40));
}
return bad;
"""


@pytest.mark.parametrize(("width", "height"), [(360, 800), (1200, 900)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_shows_it_without_overflow_errors_or_requests(browser: Any, tmp_path: Path, width: int, height: int, scheme: str) -> None:
    attacked = made.write_run(tmp_path / "demo-s_npo-1", attacks=True, extra=" " + "unbroken" * 60 + made.HOSTILE)
    place = write_report([attacked, made.write_run(tmp_path / "a-run-with-a-rather-long-name-in-its-folder")], tmp_path / "several.html")
    write_report([attacked])
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    for path in (attacked / "report.html", place):
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get(path.as_uri())
        browser.execute_cdp_cmd("Runtime.evaluate", {"expression": "document.querySelectorAll('details').forEach(d => d.open = true)"})
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("return document.querySelectorAll('script, img').length") == 0
        assert "broken" not in browser.title
        assert browser.execute_script(CONTRAST) == []
        small = "return [...document.querySelectorAll('svg.plot')].map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
        assert min(browser.execute_script(small)) > 0.84
        assert browser.get_log("browser") == []
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
