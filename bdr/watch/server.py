"""The pages, the numbers as JSON, and changes as server-sent events. Everything is read, nothing can be changed.

A run is named by an id that is looked up among the runs that were found: no part of an address ever becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse

from bdr.errors import BdrError
from bdr.records import Run
from bdr.report.colours import DARK_PAGE, DARK_PALETTE, LIGHT_PAGE, PALETTE
from bdr.report.html import tag
from bdr.report.page import page
from bdr.watch.board import Board

EVERY = 0.5  # seconds between two looks at the folders
SHARE = 4.0  # pauses are at least so many times as long as the look before them
STILL_HERE = 10.0  # seconds of silence after which an event is sent, so that a lost connection is noticed
PAGES = Path(__file__).parent / "pages"
FILES = {"watch.css": "text/css", "watch.js": "text/javascript", "plots.js": "text/javascript"}
TITLE = "Class-incremental learning"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; form-action 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Chosen = Annotated[list[str] | None, Query(alias="run")]


def is_ours(host: str, allowed: set[str]) -> bool:
    """Whether a Host header is an IP address or one of the allowed names.

    A page from elsewhere can make its own name point here and read what it likes (DNS rebinding), but not an address.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in allowed


class Pulse:
    """Looks at the folders again and again while somebody watches."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.listeners = 0
        self.leaving: Callable[[], bool] = lambda: False

    async def beat(self) -> None:
        while not self.leaving():
            began = time.monotonic()
            if self.listeners:
                await asyncio.to_thread(self.board.look)
            # if a look takes long, as on a slow disk, looking should not fill all the time
            rest = max(EVERY, SHARE * (time.monotonic() - began))
            await asyncio.sleep(EVERY / 10 if self.board.pending else rest)

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events with what has changed, as it changes; the first one has everything."""
        self.listeners += 1
        try:
            seen, silent = -1, 0.0
            yield "retry: 1000\n\n"
            while not self.leaving():
                if self.board.version != seen:
                    news = await asyncio.to_thread(self.board.since, max(0, seen))
                    seen, silent = news["version"], 0.0
                    yield f"data: {compact(news)}\n\n"
                elif silent >= STILL_HERE:
                    silent = 0.0
                    yield "event: here\ndata: \n\n"
                await asyncio.sleep(EVERY / 2)
                silent += EVERY / 2
        finally:
            self.listeners -= 1


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Reports:
    """Makes the report of some runs as `bdr report` does, one at a time, and keeps the last until its runs change."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.lock = threading.Lock()
        self.last: tuple[Any, str] = (None, "")

    def of(self, keys: tuple[str, ...]) -> str:
        with self.lock:
            self.board.look_through()
            runs, skipped, version = self.board.open_runs(keys)
            if self.last[0] != (keys, version):
                self.last = (keys, version), report_of(runs, skipped)
            return self.last[1]


def report_of(runs: list[Run], skipped: list[str]) -> str:
    return page(runs, TITLE, skipped=skipped)


def sorry(text: str, status: int) -> HTMLResponse:
    """A page that says why there is nothing to show."""
    styles = [tag("link", rel="stylesheet", href=name) for name in ("colours.css", "pages/watch.css")]
    content = tag("h1", "Nothing to show yet"), tag("p", text), tag("p", tag("a", "Back to the runs", href="./"))
    head = tag("head", tag("meta", charset="utf-8"), tag("title", "bdr watch"), *styles)
    return HTMLResponse("<!doctype html>\n" + tag("html", head, tag("body", tag("main", *content)), lang="en"), status)


def make_app(board: Board, names: set[str] | None = None) -> FastAPI:
    """The web application for a board; `names` are further host names by which it may be asked for."""
    pulse, reports = Pulse(board), Reports(board)
    allowed = {"localhost", *(names or ())}

    @contextlib.asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        beating = asyncio.create_task(pulse.beat())
        yield
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating

    # no pages that describe the API: they would fetch scripts from elsewhere
    app = FastAPI(lifespan=alive, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.pulse = pulse

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if not is_ours(request.headers.get("host", ""), allowed):
            return PlainTextResponse("refused: ask for this page as localhost or by its number, 127.0.0.1\n", 421)
        response = await answer(request)
        response.headers.update(HEADERS)
        return response

    add_pages(app)
    add_numbers(app, board)

    @app.get("/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(pulse.events(), media_type="text/event-stream")

    @app.get("/report")
    def report(run: Chosen = None) -> HTMLResponse:
        try:
            return HTMLResponse(reports.of(tuple(run or ())))
        except BdrError as error:
            return sorry(str(error), 404)

    return app


def variables(page: dict[str, str], lines: tuple[str, ...]) -> str:
    named = page | {f"series-{place}": colour for place, colour in enumerate(lines)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def colours() -> str:
    """The report's colours as CSS variables, and how many there are for lines; dark if the system is."""
    light = f":root {{ color-scheme: light dark; --colours: {len(PALETTE)}; {variables(LIGHT_PAGE, PALETTE)} }}"
    return f"{light}\n@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK_PAGE, DARK_PALETTE)} }} }}\n"


def add_pages(app: FastAPI) -> None:
    texts = {name: (PAGES / name).read_text(encoding="utf-8") for name in ("index.html", *FILES)}

    @app.get("/")
    def index() -> HTMLResponse:
        return HTMLResponse(texts["index.html"])

    @app.get("/colours.css")
    def theme() -> Response:
        return Response(colours(), media_type="text/css")

    @app.get("/pages/{name}")
    def file(name: str) -> Response:
        if name not in FILES:
            return PlainTextResponse("there is no such page\n", 404)
        return Response(texts[name], media_type=FILES[name])


def add_numbers(app: FastAPI, board: Board) -> None:
    @app.get("/api/runs")
    def runs() -> Response:
        board.look()
        return Response(compact(board.since(0)), media_type="application/json")

    @app.get("/api/runs/{key}")
    def curves(key: str) -> Response:
        found = board.curves(key)
        return JSONResponse({"error": "no run has this id"}, 404) if found is None else JSONResponse(found)

    @app.get("/api/comparison")
    def comparison(run: Chosen = None) -> Response:
        board.look_through()
        return JSONResponse(board.comparison(tuple(run or ())))

    @app.get("/api/about")
    def about() -> Response:
        return JSONResponse({"roots": [str(root) for root in board.roots]})
