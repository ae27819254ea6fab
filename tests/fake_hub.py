"""A Hugging Face hub on this machine: repositories, uploads through git's large file storage, commits, private and public."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_tests"


@dataclass
class Hub:
    """The server's address, and what it holds."""

    url: str
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Repository -> file -> content."""
    messages: list[str] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by SHA-256."""
    broken: str = ""
    """A part of a path that is answered with an error."""


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub that lives inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.removeprefix("/api/models/").partition("?")[0]
            if not self._allowed():
                return
            if name not in there.private:
                self._say({"error": "Repository not found"}, 404)
                return
            siblings = [{"rfilename": file} for file in there.files.get(name, {})]
            self._say({"id": name, "modelId": name, "private": there.private[name], "sha": "0" * 40, "tags": [], "siblings": siblings})

        def do_PUT(self) -> None:
            there.stored[self.path.rpartition("/")[2]] = self._body()
            self._say({})

        def do_POST(self) -> None:
            body = self._body()
            if not self._allowed():
                return
            path = self.path.partition("?")[0]
            if there.broken and there.broken in path:
                self._say({"error": "the disk of the hub is full"}, 507)
            elif path == "/api/repos/create":
                self._create(json.loads(body))
            elif path == "/api/validate-yaml":
                self._say({"errors": [], "warnings": []})
            elif "/preupload/" in path:
                mode = [{"path": f["path"], "shouldIgnore": False, "uploadMode": _mode(f["path"])} for f in json.loads(body)["files"]]
                self._say({"files": mode})
            elif path.endswith("/info/lfs/objects/batch"):
                self._say({"objects": [self._slot(o) for o in json.loads(body)["objects"]], "transfer": "basic"}, kind="application/vnd.git-lfs+json")
            elif "/commit/" in path:
                self._commit(path.removeprefix("/api/models/").partition("/commit/")[0], body)
            else:
                self._say({"error": f"no such place {path}"}, 404)

        def _create(self, asked: dict[str, Any]) -> None:
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else str(asked["name"])
            new = name not in there.private
            if new:
                there.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            self._say({"url": f"{there.url}/{name}", "name": name} if new else {"error": "exists", "url": f"{there.url}/{name}"}, 200 if new else 409)

        def _slot(self, wanted: dict[str, Any]) -> dict[str, Any]:
            return {**wanted, "actions": {"upload": {"href": f"{there.url}/store/{wanted['oid']}", "header": {}}}}

        def _commit(self, name: str, body: bytes) -> None:
            kept = there.files.setdefault(name, {})
            for row in map(json.loads, body.decode().splitlines()):
                value = row["value"]
                if row["key"] == "header":
                    there.messages.append(value["summary"])
                elif row["key"] == "file":
                    kept[value["path"]] = base64.b64decode(value["content"])
                elif row["key"] == "lfsFile":
                    kept[value["path"]] = there.stored[value["oid"]]
            self._say({"success": True, "commitOid": "1" * 40, "commitUrl": f"{there.url}/{name}/commit/{'1' * 40}"})

        def _allowed(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                return True
            self._say({"error": "Invalid credentials in Authorization header"}, 401)
            return False

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts: list[bytes] = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _say(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    there = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"
