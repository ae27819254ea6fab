"""excise play in a real browser: asked, answered, coloured, paraphrased; by keyboard, on a phone, for a screen reader; no request leaves."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import play_run as made
from excise.play.runs import find_runs
from test_report import CHROMIUM, CONTRAST, DRIVER, browser

__all__ = ["browser"]

pytest.importorskip("uvicorn")
pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed")

WAIT = 90


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = made.write(tmp_path_factory.mktemp("play"))
    shutil.copytree(run, run.parent / "hostile")
    result = json.loads((run / "result.json").read_text())
    result["verdict"] = ["<img src=x onerror=\"document.title='broken'\">"]
    (run.parent / "hostile" / "result.json").write_text(json.dumps(result))
    with made.serving(find_runs([run, run.parent / "hostile"])) as found:
        yield found


def window(browser: Any, width: int = 1200, scheme: str = "light") -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def opened(browser: Any, address: str) -> None:
    browser.get(address)
    until(browser, "return document.querySelectorAll('#known option').length > 1")


def until(browser: Any, script: str) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT, poll_frequency=0.1).until(lambda driver: driver.execute_script(script))


def press(browser: Any, kind: str) -> None:
    browser.find_element("css selector", f"button[data-kind={kind}]").click()
    done(browser)


def done(browser: Any) -> None:
    until(browser, "return ['Done.', 'Stopped.'].includes(document.getElementById('status').textContent) && document.getElementById('stop').disabled")


def cards(browser: Any) -> dict[str, dict[str, Any]]:
    script = """
    return [...document.querySelectorAll('.card')].map(card => [card.dataset.model, {
      answers: [...card.querySelectorAll('.answer')].map(a => a.textContent),
      tokens: [...card.querySelectorAll('.heat span')].map(s => s.textContent),
      coloured: [...card.querySelectorAll('.heat span')].filter(s => !s.style.background.startsWith('none')).length,
      rows: card.querySelectorAll('tbody tr').length,
    }]);
    """
    return dict(browser.execute_script(script))


def typed(browser: Any, text: str) -> None:
    field = browser.find_element("id", "prompt")
    field.clear()
    field.send_keys(text)


def test_a_question_three_answers_heat_maps_and_a_paraphrase(browser: Any, address: str) -> None:
    window(browser)
    opened(browser, address)
    typed(browser, made.QUESTION)
    press(browser, "plain")
    first = cards(browser)
    assert list(first) == ["before", "after", "twin"]
    for card in first.values():
        assert len(card["answers"]) == 1
        assert card["answers"][0]
        assert card["rows"] == len(card["tokens"]) > 0
        assert card["coloured"] > 0
    assert len({card["answers"][0] for card in first.values()}) == 3
    press(browser, "paraphrase")
    assert made.PARAPHRASE in browser.find_element("id", "asked").text
    assert {role: card["answers"] for role, card in cards(browser).items()} != {role: card["answers"] for role, card in first.items()}
    browser.find_element("css selector", "input[value=change]").click()
    changed = cards(browser)
    assert changed["before"]["coloured"] == 0
    assert changed["after"]["coloured"] > 0


def test_the_other_buttons(browser: Any, address: str) -> None:
    window(browser)
    opened(browser, address)
    browser.execute_script("const s = document.getElementById('known'); s.value = arguments[0]; s.dispatchEvent(new Event('change'));", made.QUESTION)
    assert browser.find_element("id", "prompt").get_attribute("value") == made.QUESTION
    samples = browser.find_element("id", "samples")
    samples.clear()
    samples.send_keys("2")
    press(browser, "samples")
    assert all(len(card["answers"]) == 2 for card in cards(browser).values())
    press(browser, "few_shot")
    assert "Lake 0 is in the north." in browser.find_element("id", "asked").text
    press(browser, "partial")
    assert all(card["answers"][0].startswith("Anna Brandt wrote") for card in cards(browser).values())


def test_by_keyboard_alone_and_escape_stops(browser: Any, address: str) -> None:
    keys = importlib.import_module("selenium.webdriver.common.keys").Keys
    window(browser)
    opened(browser, address)
    order: list[str] = []
    for _ in range(20):
        browser.switch_to.active_element.send_keys(keys.TAB)
        script = "const a = document.activeElement; return a.id || a.dataset.kind || a.name || a.className || a.tagName"
        order.append(browser.execute_script(script))
    expected = [
        "skip",
        "run",
        "report",
        "SUMMARY",
        "known",
        "prompt",
        "plain",
        "paraphrase",
        "few_shot",
        "samples",
        "samples",
        "opening",
        "partial",
        "heat",
    ]
    assert [name for name in order if name != "BODY"][: len(expected)] == expected
    field = browser.find_element("id", "prompt")
    field.send_keys("Who?", keys.ENTER)
    done(browser)
    assert all(card["answers"] for card in cards(browser).values())
    field.send_keys(keys.ENTER)
    browser.switch_to.active_element.send_keys(keys.ESCAPE)
    done(browser)


def test_the_report_is_one_click_away_and_another_run_can_be_opened(browser: Any, address: str) -> None:
    window(browser)
    opened(browser, address)
    link = browser.find_element("id", "report").get_attribute("href")
    browser.get(link)
    assert "excise report" in browser.title
    opened(browser, address)
    browser.execute_script("const s = document.getElementById('run'); s.value = 'hostile'; s.dispatchEvent(new Event('change'));")
    until(browser, "return document.getElementById('report').href.endsWith('run=hostile') && !document.getElementById('known-row').hidden")
    assert "<img src=x" in browser.execute_script("return document.getElementById('verdict').textContent")
    assert browser.title == "excise play"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_is_readable_and_asks_nobody_else(browser: Any, address: str, width: int, scheme: str) -> None:
    window(browser, width, scheme)
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    opened(browser, address)
    typed(browser, made.QUESTION)
    press(browser, "plain")
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for key in ("phi", "change"):
        browser.execute_script("document.querySelector(arguments[0]).click()", f"input[value={key}]")
        assert browser.execute_script(CONTRAST) == []
    small = (
        "return [...document.querySelectorAll('button, select, textarea')].filter(n => n.offsetParent && n.offsetHeight < 43).map(n => n.outerHTML)"
    )
    assert browser.execute_script(small) == []
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} <= {address, *(f"{address}{path}" for path in PLACES)}


PLACES = ("api/runs", "api/questions?run=run", "api/ask?run=run")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, address: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_core_python.base", reason="axe-core-python is not installed")
    window(browser, scheme=scheme)
    opened(browser, address)
    typed(browser, made.QUESTION)
    press(browser, "plain")
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.execute_script(axe.AXE_SCRIPT)
    found = browser.execute_async_script("const done = arguments[arguments.length - 1]; axe.run().then(done, e => done({error: String(e)}));")
    assert "error" not in found, found
    assert [(v["id"], v["impact"], [node["html"] for node in v["nodes"]]) for v in found["violations"]] == []
    assert len(found["passes"]) > 20


def test_a_server_that_is_gone_is_said(browser: Any, tmp_path: Path) -> None:
    window(browser)
    with made.serving(find_runs([made.write(tmp_path)])) as address:
        opened(browser, address)
        typed(browser, "Who?")
    browser.find_element("css selector", "button[data-kind=plain]").click()
    until(browser, "return document.getElementById('status').textContent.includes('still running')")
    browser.get_log("browser")
