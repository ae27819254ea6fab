"""The judge behind a server: right answers, every way of failing, spending limits, and the key that nobody gets to see."""

from __future__ import annotations

import dataclasses
import email.utils
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from excise.errors import InputError
from excise.evaluation.judges import Item
from excise.evaluation.judges.endpoint import Endpoint
from excise.evaluation.judges.journal import remembered
from excise.evaluation.judges.line import PATIENCE, retry_after
from excise.evaluation.judges.replies import Decision, read_body, read_decision
from excise.evaluation.judges.spending import Limits, Spending
from excise.evaluation.records import Verdict
from excise.settings import build
from fake_server import Act, Fake, serving

KEY = "sk-very-secret-1234"
YES, NO = '{"verdict": "yes"}', '{"verdict": "no"}'
ITEM = Item("truth", "Who wrote it?", "Anna Brandt wrote it.", "Anna Brandt")


def endpoint(fake: Fake, **settings: Any) -> Endpoint:
    """A judge in a hurry."""
    return Endpoint(**{"url": fake.url, "model": "m", "backoff": 0.01, "timeout": 5.0, "retries": 2, "concurrency": 1, **settings})


def items(n: int) -> list[Item]:
    return [dataclasses.replace(ITEM, answer=f"Answer number {i} is this.") for i in range(n)]


def verdict_of(act: Act, item: Item = ITEM, **settings: Any) -> tuple[Verdict, Fake]:
    with serving(lambda number, body: act) as fake:
        (verdict,) = endpoint(fake, **settings)([item])
    return verdict, fake


# Answers --------------------------------------------------------------------------------------------------------------


def test_verdicts_come_in_order_whatever_order_the_server_answers_in() -> None:
    def script(number: int, body: dict[str, Any]) -> Act:
        which = int(body["messages"][1]["content"].split("Answer number ")[1].split()[0])
        return Act(text=YES if which % 3 == 0 else NO, sleep=0.02 * (which % 4))

    with serving(script) as fake:
        judge = endpoint(fake, concurrency=4)
        verdicts = list(judge(items(20)))
    assert [v.score for v in verdicts] == [float(i % 3 == 0) for i in range(20)]
    assert 1 < fake.most <= 4
    assert (judge.spending.requests, judge.spending.sent, judge.spending.received) == (20, 1000, 200)


def test_what_the_server_is_asked() -> None:
    verdict, fake = verdict_of(Act(text='{"verdict": "no", "reason": "another name"}'), dataclasses.replace(ITEM, label="why"))
    assert verdict == Verdict("endpoint", "truth", 0.0, "another name")
    (body,) = fake.asked
    assert body["path"] == "/v1/chat/completions"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 200)
    system, user = body["messages"]
    assert '{"verdict": "yes"}' in system["content"]
    assert "<material>\nQuestion: Who wrote it?\nTrue answer: Anna Brandt\nGiven answer: Anna Brandt wrote it.\n</material>" in user["content"]
    assert "cause or reason" in user["content"]
    assert fake.keys == [None]
    verdict, fake = verdict_of(
        Act(text='{"score": 0.25}'), Item("related", "cats", "A text on dogs."), temperature=None, reply_limit="max_completion_tokens"
    )
    assert (verdict.aspect, verdict.score) == ("related", 0.25)
    assert "temperature" not in fake.asked[0]
    assert fake.asked[0]["max_completion_tokens"] == 200


def test_degenerate_answers_cost_nothing() -> None:
    verdict, fake = verdict_of(Act(), dataclasses.replace(ITEM, answer=""))
    assert verdict.score == 0.0
    assert fake.asked == []


@pytest.mark.parametrize(
    ("text", "graded", "score"),
    [
        (YES, False, 1.0),
        (' {"verdict": "No"}\n', False, 0.0),
        ('```json\n{"verdict": "yes"}\n```', False, 1.0),
        ("<think>It may be {no}</think>\n" + YES, False, 1.0),
        ('{"verdict": "yes", "reason": "x"}', False, 1.0),
        ('{"score": 1}', True, 1.0),
        ('{"score": 0.5}', True, 0.5),
        ("yes", False, None),
        ("Sure! " + YES, False, None),
        (YES + YES, False, None),
        ('{"verdict": "yes", "verdict": "no"}', False, None),
        ('{"verdict": "maybe"}', False, None),
        ('{"verdict": true}', False, None),
        ('{"verdict": ["yes"]}', False, None),
        ('{"verdict": "yes", "score": 1}', False, None),
        ('{"verdict": "yes", "reason": 1}', False, None),
        ('["yes"]', False, None),
        ("[]", False, None),
        ('"yes"', False, None),
        ("", False, None),
        ('{"score": 1}', False, None),
        (YES, True, None),
        ('{"score": 7}', True, None),
        ('{"score": -0.1}', True, None),
        ('{"score": NaN}', True, None),
        ('{"score": true}', True, None),
        ('{"score": "0.5"}', True, None),
        ("[" * 100_000, False, None),
    ],
)
def test_replies_are_read_strictly(text: str, graded: bool, score: float | None) -> None:
    found = read_decision(text, graded)
    assert (None if found is None else found.score) == score
    assert found is None or isinstance(found, Decision)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}', b"\xff"])
def test_bodies_that_are_no_completion_are_empty_replies(body: bytes) -> None:
    assert read_body(body).text == ""
    assert read_body(b'{"usage": {"prompt_tokens": -1, "completion_tokens": 2}}').used is None


# Failures -------------------------------------------------------------------------------------------------------------


def test_nonsense_is_asked_about_once_more() -> None:
    with serving(lambda number, body: Act(text="I think so" if number == 0 else YES)) as fake:
        (verdict,) = endpoint(fake)([ITEM])
    assert verdict.score == 1.0
    assert len(fake.asked) == 2
    assert [turn["role"] for turn in fake.asked[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert fake.asked[1]["messages"][2]["content"] == "I think so"


@pytest.mark.parametrize("act", [Act(text="I think so"), Act(raw="<html>busy</html>"), Act(raw="{}"), Act(text="")])
def test_nonsense_twice_is_undecided_with_its_reason(act: Act) -> None:
    verdict, fake = verdict_of(act)
    assert verdict.score is None
    assert verdict.reason.startswith("two replies that cannot be read")
    assert len(fake.asked) == 2


@pytest.mark.parametrize("act", [Act(status=500), Act(status=429), Act(status=503, raw="busy"), Act(hang_up=True)])
def test_a_failing_server_is_asked_again(act: Act) -> None:
    with serving(lambda number, body: act if number < 2 else Act()) as fake:
        (verdict,) = endpoint(fake)([ITEM])
    assert verdict.score == 1.0
    assert len(fake.asked) == 3


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (Act(status=500), "the server answers 500, 3 times"),
        (Act(status=429), "the server answers 429, 3 times"),
        (Act(hang_up=True), "the connection was lost"),
        (Act(sleep=2.0), r"no answer within 0.2 s, 3 times"),
        (Act(drip=0.05), r"no answer within 0.2 s, 3 times"),
    ],
)
def test_a_server_that_never_answers_leaves_the_item_undecided(act: Act, reason: str) -> None:
    verdict, fake = verdict_of(act, timeout=0.2)
    assert verdict.score is None
    assert reason in verdict.reason
    assert len(fake.asked) == 3


def test_a_request_that_is_refused_is_undecided_at_once() -> None:
    message = json.dumps({"error": {"message": "too\n long"}})
    verdict, fake = verdict_of(Act(status=400, raw=message))
    assert (verdict.score, verdict.reason) == (None, "the server answers 400: too long")
    assert len(fake.asked) == 1


def test_retry_after_is_waited_for_by_all_threads() -> None:
    times: list[float] = []

    def script(number: int, body: dict[str, Any]) -> Act:
        times.append(time.monotonic())
        return Act(status=429, headers={"Retry-After": "0.5"}) if number == 0 else Act()

    with serving(script) as fake:
        verdicts = list(endpoint(fake, backoff=0.0)(items(2)))
    assert [v.score for v in verdicts] == [1.0, 1.0]
    assert times[1] - times[0] >= 0.45


def test_a_pause_that_is_too_long_is_not_waited_for() -> None:
    begun = time.monotonic()
    verdict, fake = verdict_of(Act(status=429, headers={"Retry-After": "3600"}))
    assert time.monotonic() - begun < 5
    assert verdict.reason == "the server asks for a pause of 3600 s, longer than max_wait = 60"
    assert len(fake.asked) == 1


def test_retry_after_by_hand() -> None:
    assert retry_after("3") == 3.0
    assert retry_after("-3") == 0.0
    soon = retry_after(email.utils.formatdate(time.time() + 100, usegmt=True))
    assert soon is not None
    assert 90 < soon <= 100
    assert [retry_after(text) for text in (None, "", "soon", "nan")] == [None] * 4


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with serving(lambda number, body: Act(status=500)) as fake:
        original = threading.Event.wait

        def wait(self: threading.Event, timeout: float | None = None) -> bool:
            if threading.current_thread().name.startswith("excise-judge"):
                pauses.append(timeout or 0.0)
                return False
            return original(self, timeout)

        monkeypatch.setattr(threading.Event, "wait", wait)
        list(endpoint(fake, backoff=8.0, retries=4, max_wait=20.0)([ITEM]))
    assert len(pauses) == 4
    for pause, longest in zip(pauses, (8, 16, 20, 20), strict=True):
        assert longest / 2 <= pause <= longest


def test_a_server_that_has_died_is_given_up() -> None:
    with serving(lambda number, body: Act(status=500)) as fake:
        verdicts = list(endpoint(fake, retries=0)(items(PATIENCE + 5)))
    assert len(fake.asked) == PATIENCE
    assert all(v.score is None for v in verdicts)
    assert "no answer 8 times in a row" in verdicts[-1].reason


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Act(status=401, raw=f"wrong key {KEY}"), "answers 401: the key is refused"),
        (Act(status=403), "answers 403"),
        (Act(status=404), r"judges\.endpoint\.url and judges\.endpoint\.model"),
        (Act(status=307, headers={"Location": "http://127.0.0.1:9/"}), "it has moved"),
    ],
)
def test_what_no_repetition_will_change_stops_at_once(act: Act, words: str) -> None:
    with serving(lambda number, body: act) as fake, pytest.raises(InputError, match=words) as error:
        list(endpoint(fake, concurrency=2)(items(50)))
    assert len(fake.asked) <= 16
    assert KEY not in str(error.value)


def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with serving(lambda number, body: Act()) as fake:
        pass
    with pytest.raises(InputError, match=r"cannot be reached .*check judges\.endpoint\.url"):
        list(endpoint(fake)([ITEM]))


def test_other_machines_stay_out_of_reach_of_tests() -> None:
    with pytest.raises(InputError, match="tests are offline"):
        list(Endpoint("http://example.com/v1", "m", retries=0)([ITEM]))


# Money ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "sent"),
    [({"max_requests": 3}, 3), ({"max_tokens": 600}, 4), ({"max_cost": 0.5, "input_price": 0.001, "output_price": 0.001}, 3)],
)
def test_spending_ends_at_its_limit(limit: dict[str, Any], sent: int) -> None:
    # a request reserves about 200 tokens to send and 200 to receive, and then really takes 50 and 10
    with serving(lambda number, body: Act()) as fake:
        judge = endpoint(fake, **limit)
        verdicts = list(judge(items(10)))
        more = list(judge(items(1)))
    assert len(fake.asked) == sum(v.score is not None for v in verdicts)
    assert 1 <= len(fake.asked) <= 10
    assert abs(len(fake.asked) - sent) <= 2
    name = next(iter(limit))
    assert verdicts[-1].reason == f"not asked: the limit {name} = {limit[name]:g} is reached"
    assert more[0].score is None, "the limit holds for all calls together"


def test_repeated_requests_count_and_refused_ones_cost_no_tokens() -> None:
    with serving(lambda number, body: Act(status=500) if number == 0 else Act()) as fake:
        judge = endpoint(fake)
        list(judge([ITEM]))
    assert (judge.spending.requests, judge.spending.sent, judge.spending.received) == (2, 50, 10)
    with serving(lambda number, body: Act(usage=None)) as fake:
        judge = endpoint(fake, input_price=2.0, output_price=3.0)
        list(judge([ITEM]))
    assert judge.spending.received == 200, "where the server does not say, what was reserved stands"
    assert judge.spending.cost == judge.spending.sent * 2 + 600


def test_limits_by_hand() -> None:
    spending = Spending(Limits(3, 100, 5.0, 0.1, 0.2))
    assert spending.reserve(10, 10) == ""  # cost 3
    assert spending.reserve(10, 10) == "max_cost = 5"
    spending.settle((10, 10), (5, 1))  # cost .7
    assert spending.cost == pytest.approx(0.7)
    assert spending.reserve(90, 10) == "max_tokens = 100"
    assert spending.reserve(1, 1) == ""
    assert spending.reserve(1, 1) == ""
    assert spending.reserve(1, 1) == "max_requests = 3"
    assert spending.requests == 3


# The key --------------------------------------------------------------------------------------------------------------


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)

    def script(number: int, body: dict[str, Any]) -> Act:
        if number == 0:
            return Act(text=json.dumps({"verdict": "yes", "reason": f"your key is {KEY}"}))
        return Act(status=400, raw=f"{KEY} is your key") if number == 1 else Act(text=f"{KEY}?")

    with serving(script) as fake:
        judge = endpoint(fake, key_variable="MY_KEY")
        verdicts = list(dict(remembered(judge, items(3), tmp_path)).values())
    assert fake.keys == [f"Bearer {KEY}"] * 4
    assert [v.score for v in verdicts] == [1.0, None, None]
    assert verdicts[0].reason == "your key is ***"
    (file,) = tmp_path.iterdir()
    for text in (file.read_text(), caplog.text, repr(judge), repr(judge.spending), json.dumps(judge.identity()), *(v.reason for v in verdicts)):
        assert KEY not in text


@pytest.mark.parametrize(
    ("value", "words"), [(None, "'MY_KEY' is not set"), (" ", "'MY_KEY' is not set"), ("sk-é", "is no key"), ("a\tb", "is no key")]
)
def test_a_key_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, value: str | None, words: str) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(InputError, match=words) as error:
        list(Endpoint("http://127.0.0.1:9/v1", "m", key_variable="MY_KEY")([ITEM]))
    assert value is None or not value.strip() or value not in str(error.value)


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "m"}, r"judges\.endpoint\.url: field required"),
        ({"url": "host/v1", "model": "m"}, r"judges\.endpoint\.url is .*https://host/v1"),
        ({"url": "ftp://host/v1", "model": "m"}, r"judges\.endpoint\.url"),
        ({"url": f"https://me:{KEY}@host/v1", "model": "m"}, "key_variable"),
        ({"url": f"https://host/v1?key={KEY}", "model": "m"}, "key_variable"),
        ({"url": "https://host/v1", "model": ""}, r"judges\.endpoint\.model is empty"),
        ({"url": "https://host/v1", "model": "m", "concurrency": 0}, r"judges\.endpoint\.concurrency is 0"),
        ({"url": "https://host/v1", "model": "m", "retries": -1}, r"judges\.endpoint\.retries is -1"),
        ({"url": "https://host/v1", "model": "m", "timeout": 0}, r"judges\.endpoint\.timeout"),
        ({"url": "https://host/v1", "model": "m", "max_tokens": 0}, r"judges\.endpoint\.max_tokens is 0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        build(Endpoint, settings, "judges.endpoint")
    assert KEY not in str(error.value)


def test_only_what_decides_counts_for_what_is_remembered(tmp_path: Path) -> None:
    with serving(lambda number, body: Act()) as fake:
        poor, rich = endpoint(fake, max_requests=2), endpoint(fake, max_requests=9, concurrency=3, timeout=9.0)
        first = dict(remembered(poor, items(4), tmp_path))
        assert [v.score for v in first.values()] == [1.0, 1.0, None, None]
        again = dict(remembered(rich, items(4), tmp_path))
        assert [v.score for v in again.values()] == [1.0] * 4
        assert len(fake.asked) == 4, "with more money it goes on where it stopped"
        list(dict(remembered(endpoint(fake, model="n"), items(1), tmp_path)))
        assert len(fake.asked) == 5


def test_a_judging_that_is_left_early_ends_its_threads(tmp_path: Path) -> None:
    with serving(lambda number, body: Act()) as fake:
        verdicts = iter(endpoint(fake, concurrency=2)(items(200)))
        next(verdicts)
        verdicts.close()  # type: ignore[attr-defined]
        asked = len(fake.asked)
        time.sleep(0.1)
        assert len(fake.asked) == asked < 200
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("excise-judge")]
