"""The page's server: loopback only unless asked, no outside assets, nothing written down."""

from __future__ import annotations

import importlib
import ipaddress
import json
import secrets
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from excise.errors import InputError
from excise.play.asking import MOST_SAMPLES, Asker, question_of
from excise.play.runs import Run, Shelf, find_runs
from excise.report import names

PORT = 8347
LARGEST = 1 << 20
"""Bytes of a request."""


def play(folders: Sequence[Path], *, host: str = "127.0.0.1", port: int | None = None, keep: int = 3, ready: Any = None) -> None:
    """Serves the page until it is interrupted.

    Args:
        folders: run folders, or folders of them.
        port: None takes 8347, or any free one where that is taken.
        keep: models that stay in memory.
        ready: called with the page's address as soon as it can be opened.

    Raises:
        InputError: no run, a port or host that cannot be used, the packages are not there.
    """
    uvicorn = _library("uvicorn")
    application = app(find_runs(folders), keep=keep, hosts=_hosts(host))
    with listening(host, port) as opened:
        address = f"http://{_shown(host)}:{opened.getsockname()[1]}/"
        config = uvicorn.Config(application, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        if ready is not None:
            ready(address)
        server.run(sockets=[opened])


def app(runs: Mapping[str, Run], *, keep: int = 3, hosts: Sequence[str] = ("127.0.0.1", "localhost", "[::1]")) -> Any:
    """The page and what it asks for, as an ASGI application.

    Args:
        hosts: names by which it may be asked for: a page elsewhere that points its own name at this machine gets nothing.
    """
    _library("starlette")
    from starlette.applications import Starlette
    from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    asker = Asker(Shelf(keep))

    def run_of(request: Request) -> Run:
        found = runs.get(request.query_params.get("run", ""))
        if found is None:
            raise HTTPException(404, "there is no such run")
        return found

    async def page(request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        policy += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        return HTMLResponse(html(nonce), headers={**PRIVATE, "Content-Security-Policy": policy})

    async def listed(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: [_described(run) for run in runs.values()]), headers=PRIVATE)

    async def questions(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(run_of(request).questions), headers=PRIVATE)

    async def report(request: Request) -> Response:
        place = run_of(request).folder / "report.html"
        if not place.is_file():
            raise HTTPException(404, "this run has no report")
        return FileResponse(place, headers=PRIVATE, media_type="text/html")

    async def ask(request: Request) -> Response:
        run = run_of(request)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json" or not _same_origin(request.headers):
            raise HTTPException(403, "questions come from the page itself")
        body = await request.body()
        if len(body) > LARGEST:
            raise HTTPException(413, "the question is too long")
        try:
            question = question_of(json.loads(body))
        except (ValueError, RecursionError):
            raise HTTPException(400, "expected JSON") from None
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        lines = (json.dumps(event, ensure_ascii=False) + "\n" for event in asker.ask(run, question))
        return StreamingResponse(iterate_in_threadpool(_closing(lines)), media_type="application/x-ndjson", headers=PRIVATE)

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return JSONResponse({"error": error.detail if isinstance(error, HTTPException) else "something went wrong"}, status, headers=PRIVATE)

    routes = [
        Route("/", page),
        Route("/api/runs", listed),
        Route("/api/questions", questions),
        Route("/api/ask", ask, methods=["POST"]),
        Route("/report", report),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: refused})


PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


@cache
def _template() -> jinja2.Template:
    folders = [Path(__file__).parent / "templates", Path(names.__file__).parent / "templates"]
    return jinja2.Environment(loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined).get_template("play.html.j2")


def html(nonce: str) -> str:
    """The page: one file, styles and script inside."""
    return _template().render(nonce=nonce, most_samples=MOST_SAMPLES)


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a host and port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, PORT if port is None else port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host}: there is no such address on this machine") from None
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(address)
        except OSError:
            if port is not None:
                raise
            opened.bind((address[0], 0, *address[2:]))
        opened.listen(64)
    except OSError as error:
        opened.close()
        raise InputError(f"cannot listen on {host}, port {port or PORT}: {error.strerror or error}") from None
    return opened


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts(host: str) -> Sequence[str]:
    return ("127.0.0.1", "localhost", "[::1]", host) if is_loopback(host) else ("*",)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server, or from no page at all."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _closing(lines: Generator[str, None, None]) -> Iterator[str]:
    """The lines; whoever stops reading ends the work behind them."""
    try:
        yield from lines
    finally:
        lines.close()


def _described(run: Run) -> dict[str, Any]:
    try:
        return run.describe()
    except InputError as error:
        return {"name": run.name, "report": False, "verdict": [str(error)], "models": []}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f'the page needs the package {name}: pip install "excise[play]"') from None
