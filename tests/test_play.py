"""excise play: what is asked of which model, what the server hands out and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import play_run as made
from conftest import refused
from excise.data.encode import encode_prompt
from excise.evaluation.generate import generate
from excise.loading import ModelSpec, load
from excise.play.asking import Asker, Question, question_of, rewritten
from excise.play.runs import Run, Shelf, find_runs
from excise.play.server import is_loopback, listening


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return find_runs([made.write(tmp_path_factory.mktemp("play"))])["run"]


@pytest.fixture(scope="module")
def asker() -> Asker:
    return Asker()


@pytest.fixture(scope="module")
def address(run: Run) -> Iterator[str]:
    pytest.importorskip("uvicorn")
    with made.serving({"run": run}) as found:
        yield found


def ask(asker: Asker, run: Run, **question: Any) -> list[dict[str, Any]]:
    return [dict(event) for event in asker.ask(run, Question(**{"prompt": made.QUESTION, "max_new_tokens": 6, **question}))]


def answers(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {event["model"]: event["answers"] for event in events if event["event"] == "answers"}


# What is asked


def test_three_models_answer_in_turn_each_with_its_heat_map(run: Run, asker: Asker) -> None:
    events = ask(asker, run)
    order = list(dict.fromkeys(event["model"] for event in events if "model" in event))
    assert order == ["before", "after", "twin"]
    for role, found in answers(events).items():
        spec = run.specs[role]
        assert isinstance(spec, ModelSpec)
        subject = load(spec)
        assert found == [text.strip() for text in generate(subject, [encode_prompt(subject.tokenizer, subject.template, made.QUESTION)], 6)]
        assert "".join(event["text"] for event in events if event["event"] == "text" and event["model"] == role).strip() == found[0]
    heats = {event["model"]: event for event in events if event["event"] == "heat"}
    assert heats.keys() == {role for role, found in answers(events).items() if found[0]}
    for role, heat in heats.items():
        (tokens,) = heat["answers"]
        shown = "".join(token["text"] for token in tokens).replace("\ufffd", "")  # each of the bytes of one stands for all of it
        assert shown.startswith(answers(events)[role][0].replace("\ufffd", ""))
        changes = [token["change"] for token in tokens]
        assert all(change == 0 for change in changes) if role == "before" else any(abs(change) > 1e-3 for change in changes)
        assert any(token["phi"] > 0 for token in tokens)
    assert events[-1] == {"event": "done"}


def test_models_are_loaded_once_and_no_more_than_there_is_room_for(run: Run) -> None:
    asker = Asker(Shelf(1))
    assert sum(event["event"] == "loading" for event in ask(asker, run, models=("after", "twin"), max_new_tokens=1)) == 2
    assert len(asker.shelf.loaded) == 1
    whole = Asker()
    ask(whole, run, max_new_tokens=1)
    assert not [event for event in ask(whole, run, max_new_tokens=1) if event["event"] == "loading"]


def test_a_paraphrase_of_the_data_or_else_one_of_ours(run: Run) -> None:
    assert rewritten(run, Question(made.QUESTION, "paraphrase")).prompt == made.PARAPHRASE
    own = {rewritten(run, Question("Is it {late}?", "paraphrase", turn=turn)).prompt for turn in range(6)}
    assert len(own) == 3
    assert all("Is it {late}?" in prompt for prompt in own)


def test_few_shots_come_from_what_is_kept(run: Run, tmp_path: Path) -> None:
    prompt = rewritten(run, Question(made.QUESTION, "few_shot")).prompt
    assert prompt.startswith("Question: Where is lake 0?\nAnswer: Lake 0 is in the north.")
    assert prompt.endswith(f"Question: {made.QUESTION}\nAnswer:")
    lost = Run(shutil.copytree(run.folder, tmp_path / "lost"), "lost")
    result = json.loads((lost.folder / "result.json").read_text())
    result["recipe"]["data"]["forget"] = "/nowhere.jsonl"
    (lost.folder / "result.json").write_text(json.dumps(result))
    refused(lambda: rewritten(lost, Question("Who?", "few_shot")), "cannot be read now")
    refused(lambda: rewritten(lost, Question("Who?", "partial")), "type the start")
    assert lost.questions() == {}


def test_a_partial_answer_is_put_into_the_models_mouth(run: Run, asker: Asker) -> None:
    assert rewritten(run, Question(made.QUESTION, "partial")).opening == "Anna Brandt wrote"
    events = ask(asker, run, kind="partial", opening="It was", models=("after",))
    assert events[0]["opening"] == "It was"
    assert answers(events)["after"][0].startswith("It was")


def test_samples_differ_from_press_to_press_and_repeat_for_the_same_press(run: Run, asker: Asker) -> None:
    first, again, later = (ask(asker, run, kind="samples", samples=3, turn=turn, models=("after",)) for turn in (1, 1, 2))
    assert len(answers(first)["after"]) == 3
    assert answers(first) == answers(again)
    assert answers(first) != answers(later)
    (heat,) = (event for event in first if event["event"] == "heat")
    assert len(heat["answers"]) == len([text for text in answers(first)["after"] if text])


def test_a_model_that_is_gone_does_not_stop_the_others(tmp_path: Path) -> None:
    run = find_runs([made.write(tmp_path, twin=False)])["run"]
    shutil.rmtree(tmp_path / "before")
    events = ask(Asker(), run, max_new_tokens=2)
    errors = {event["model"]: event["text"] for event in events if event["event"] == "error"}
    assert "not where it was" in errors["before"]
    assert "without a retrained twin" in errors["twin"]
    assert "after" in answers(events)
    for event in events:
        if event["event"] == "heat":
            assert "no change" in event["missing"]
            assert event["answers"][0][0]["change"] is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "an object"),
        ({}, "prompt"),
        ({"prompt": " "}, "type a question"),
        ({"prompt": "x", "kind": "shout"}, "question.kind"),
        ({"prompt": "x", "samples": 0}, "1 to 16"),
        ({"prompt": "x", "max_new_tokens": 9999}, "1 to 512"),
        ({"prompt": "x" * 20_001}, "too long"),
        ({"prompt": "x", "models": ["/etc/passwd"]}, "question.models"),
        ({"prompt": "x", "path": "/etc/passwd"}, "unknown setting question.path"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(values: Any, says: str) -> None:
    refused(lambda: question_of(values), says)


def test_run_folders_are_found_and_others_refused(run: Run, tmp_path: Path) -> None:
    assert list(find_runs([run.folder.parent])) == ["run"]
    assert list(find_runs([run.folder, run.folder])) == ["run"]
    (tmp_path / "again").mkdir()
    shutil.copytree(run.folder, tmp_path / "again" / "run")
    assert list(find_runs([run.folder, tmp_path / "again"])) == ["run", "run (2)"]
    refused(lambda: find_runs([tmp_path / "nothing"]), "neither the folder of a finished run")


# What the server hands out


def get(address: str, path: str, **headers: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(urllib.parse.urljoin(address, path), headers=headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def post(address: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(urllib.parse.urljoin(address, path), body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_the_runs_the_questions_and_the_report(address: str, run: Run) -> None:
    status, page, headers = get(address, "/")
    assert status == 200
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    (listed,) = json.loads(get(address, "/api/runs")[1])
    assert (listed["name"], listed["report"], [model["role"] for model in listed["models"]]) == ("run", True, ["before", "after", "twin"])
    assert listed["verdict"]
    assert json.loads(get(address, "/api/questions?run=run")[1])["forget"] == [made.QUESTION]
    assert get(address, "/report?run=run")[1] == (run.folder / "report.html").read_text()
    for path in ("/report?run=../../etc/passwd", "/api/questions?run=other", "/static/x", "/docs"):
        assert get(address, path)[0] == 404


def test_an_answer_streams_line_by_line(address: str) -> None:
    status, text = post(address, "/api/ask?run=run", json.dumps({"prompt": made.QUESTION, "max_new_tokens": 2}).encode())
    assert status == 200
    events = [json.loads(line) for line in text.splitlines()]
    assert events[0]["event"] == "asked"
    assert events[-1] == {"event": "done"}


def test_pages_from_elsewhere_get_nothing(address: str) -> None:
    question = json.dumps({"prompt": "x", "max_new_tokens": 1}).encode()
    assert get(address, "/api/runs", Host="evil.example")[0] == 400
    assert post(address, "/api/ask?run=run", question, Origin="http://evil.example")[0] == 403
    assert post(address, "/api/ask?run=run", question, **{"Content-Type": "text/plain"})[0] == 403
    assert post(address, "/api/ask?run=run", b"{")[0] == 400
    assert post(address, "/api/ask?run=run", b'{"prompt": "x", "samples": 99}')[0] == 400
    assert post(address, "/api/ask?run=run", b" " * (1 << 21))[0] == 413
    assert post(address, "/api/ask?run=none", question)[0] == 404


def test_nothing_that_is_asked_is_written_down(run: Run, asker: Asker, cache: Path, tmp_path: Path) -> None:
    folder = run.folder.parent
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    ask(asker, run, prompt="Where is the secret?", max_new_tokens=2)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not cache.exists()


def test_a_port_that_is_taken_is_replaced_unless_it_was_asked_for() -> None:
    with listening("127.0.0.1", None) as first, listening("127.0.0.1", None) as second:
        taken = second.getsockname()[1]
        assert taken != first.getsockname()[1]
        refused(lambda: listening("127.0.0.1", taken), "cannot listen", str(taken))
    refused(lambda: listening("nowhere.invalid.", 0), "--host")


def test_what_is_loopback() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.1.2")
    assert socket.gethostbyname("localhost").startswith("127.")


def test_the_run_knows_its_models_by_the_recipe(run: Run) -> None:
    before, after, twin = (run.specs[role] for role in ("before", "after", "twin"))
    assert isinstance(before, ModelSpec)
    assert isinstance(after, ModelSpec)
    assert isinstance(twin, ModelSpec)
    assert before.path.endswith("/before")
    assert after.path == str(run.folder / "model")
    assert twin.path.endswith("/twin")
    assert dataclasses.replace(before) == before
