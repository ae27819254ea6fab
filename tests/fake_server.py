"""A chat server on this machine that does what a test tells it to: answers, stumbles, talks nonsense, hangs up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Act:
    """What the server does with one request."""

    status: int = 200
    text: str = '{"verdict": "yes"}'
    """What the model says."""
    headers: dict[str, str] = field(default_factory=dict)
    raw: str | None = None
    """The whole body, in place of a chat completion."""
    sleep: float = 0.0
    drip: float = 0.0
    """Seconds between two bytes of the body."""
    hang_up: bool = False
    usage: tuple[int, int] | None = (50, 10)


Script = Callable[[int, dict[str, Any]], Act]
"""From the number of the request (0-based) and its body to what is done."""


@dataclass
class Fake:
    """The server's address and what it was asked."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most: int = 0
    """Most requests under way at once."""


@contextmanager
def serving(script: Script) -> Iterator[Fake]:
    """A server that lives inside the block."""
    stop, lock, under_way = threading.Event(), threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(fake.asked)
                fake.asked.append(body | {"path": self.path})
                fake.keys.append(self.headers.get("Authorization"))
                under_way[0] += 1
                fake.most = max(fake.most, under_way[0])
            try:
                self._play(script(number, body))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with lock:
                    under_way[0] -= 1

        def _play(self, act: Act) -> None:
            stop.wait(act.sleep)
            if act.hang_up:
                self.close_connection = True
                return
            usage = {"usage": {"prompt_tokens": act.usage[0], "completion_tokens": act.usage[1]}} if act.usage else {}
            content = json.dumps({"choices": [{"message": {"role": "assistant", "content": act.text}}], **usage}) if act.raw is None else act.raw
            self.send_response(act.status)
            self.send_header("Content-Length", str(len(content.encode())))
            for name, value in act.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if not act.drip:
                self.wfile.write(content.encode())
                return
            for byte in content.encode():
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if stop.wait(act.drip):
                    break

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    fake = Fake(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
