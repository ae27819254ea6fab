"""The connection to a chat server: sends, waits, sends again, and knows when to stop."""

from __future__ import annotations

import email.utils
import json
import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from excise.errors import InputError
from excise.evaluation.judges.replies import read_body
from excise.evaluation.judges.spending import Spending

if TYPE_CHECKING:
    import httpx

    from excise.evaluation.judges.endpoint import Endpoint

MISSING = 'the judge "endpoint" needs httpx: pip install "excise[judges]"'
BUSY = (408, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
"""Answers after which the same request may succeed later."""
WRONG = {
    401: "the key is refused: check the environment variable that judges.endpoint.key_variable names",
    402: "the account has no credit",
    403: "access is refused: check the key and what it may use",
    404: "there is no such address or model: check judges.endpoint.url and judges.endpoint.model",
    405: "this is no chat server: check judges.endpoint.url",
}
"""Answers that no repetition will change."""
PATIENCE = 8
"""Items in a row that got no answer at all, after which the server is taken for gone."""
LARGEST = 2**20
"""Bytes of a reply that are read."""


class Unanswered(Exception):
    """An item stays undecided; the message says why."""


class Line:
    """A client for one call of a judge, used by its threads together."""

    def __init__(self, judge: Endpoint, key: str, spending: Spending) -> None:
        try:
            import httpx
        except ImportError:
            raise InputError(MISSING) from None
        self.judge = judge
        self.spending = spending
        self._key = key
        self._httpx = httpx
        base = judge.url.rstrip("/")
        self.address = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=judge.concurrency, max_keepalive_connections=judge.concurrency)
        self._client = httpx.Client(headers=headers, timeout=judge.timeout, limits=limits, follow_redirects=False)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._reached = False
        self._silent = 0

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()
        self._client.close()

    def hang_up(self) -> None:
        """Ends every pause; nothing is sent any more."""
        self._closed.set()

    def without_key(self, text: str) -> str:
        """A text from the server without the key, should it have repeated it."""
        return text.replace(self._key, "***") if self._key else text

    def send(self, turns: Sequence[dict[str, str]]) -> bytes:
        """The body of the server's answer to a conversation.

        Raises:
            Unanswered: no answer after all repetitions, a request that it refuses, or a limit that is reached.
            InputError: the server cannot be reached at all, or refuses everything.
        """
        judge = self.judge
        body: dict[str, Any] = {"model": judge.model, "messages": list(turns), judge.reply_limit: judge.reply_tokens}
        if judge.temperature is not None:
            body["temperature"] = judge.temperature
        reserved = (sum(len(turn["content"].encode()) // 3 + 8 for turn in turns), judge.reply_tokens)
        reason = ""
        for attempt in range(judge.retries + 1):
            if self._silent >= PATIENCE:
                raise Unanswered(f"not asked: the server gave no answer {PATIENCE} times in a row")
            self._pause()
            if limit := self.spending.reserve(*reserved):
                raise Unanswered(f"not asked: the limit {limit} is reached")
            try:
                status, headers, content = self._post(body)
            except self._httpx.TransportError as error:
                reason = self._complaint(error)
                self._wait(attempt, None)
                continue
            self._reached = True
            if status == 200:
                self._silent = 0
                used = read_body(content).used
                if used is not None:
                    self.spending.settle(reserved, used)
                return content
            self.spending.settle(reserved, (0, 0))  # refused requests are not charged for
            reason = f"the server answers {status}"
            if status in WRONG or 300 <= status < 400:
                raise InputError(f"{self.address}: {reason}: {WRONG.get(status, 'it has moved: give its present address in judges.endpoint.url')}")
            if status not in BUSY:
                self._silent = 0
                raise Unanswered(f"{reason}: {self._excerpt(content)}")
            self._wait(attempt, headers.get("retry-after"))
        with self._lock:
            self._silent += 1
        raise Unanswered(f"{reason}, {judge.retries + 1} times")

    def _post(self, body: dict[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        """Sends once. The whole takes ``timeout`` seconds at most, however slowly the server drips."""
        end = time.monotonic() + self.judge.timeout
        content = b""
        with self._client.stream("POST", self.address, json=body) as response:
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() > end:
                    raise self._httpx.ReadTimeout("the reply takes too long")
                if len(content) > LARGEST:
                    break
            return response.status_code, response.headers, content

    def _complaint(self, error: httpx.TransportError) -> str:
        if isinstance(error, self._httpx.TimeoutException):
            return f"no answer within {self.judge.timeout:g} s"
        if isinstance(error, (self._httpx.ConnectError, self._httpx.UnsupportedProtocol)) and not self._reached:
            raise InputError(f"{self.address} cannot be reached ({self.without_key(str(error))}): check judges.endpoint.url and the server") from None
        return f"the connection was lost ({type(error).__name__})"

    def _wait(self, attempt: int, asked: str | None) -> None:
        """The pause after a failed request: what the server asks for, for all threads, else one that doubles each time."""
        judge = self.judge
        seconds = retry_after(asked)
        if seconds is not None and seconds > judge.max_wait:
            raise Unanswered(f"the server asks for a pause of {seconds:.0f} s, longer than max_wait = {judge.max_wait:g}")
        if attempt == judge.retries:
            return
        if seconds is not None:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + seconds)
            return
        self._closed.wait(min(judge.max_wait, judge.backoff * 2**attempt) * random.uniform(0.5, 1.0))

    def _pause(self) -> None:
        """Until the time that the server asked for has come."""
        while (rest := self._not_before - time.monotonic()) > 0:
            if self._closed.wait(rest):
                break
        if self._closed.is_set():
            raise Unanswered("not asked: judging was ended")

    def _excerpt(self, content: bytes) -> str:
        """What the server says about a refused request, short and on one line."""
        text = content.decode(errors="replace")
        try:
            value = json.loads(text)
            message = value["error"]["message"]
            text = message if isinstance(message, str) else text
        except (ValueError, KeyError, TypeError):
            pass
        return self.without_key(" ".join(text.split()))[:200]


def retry_after(text: str | None) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date. None: nothing that can be read."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
