"""A real headless Chromium for tests of pages; conftest offers it to all of them as the fixture `browser`.

@pytest.mark.browser
def test_the_table_sorts(browser):
    tab = browser.open("file:///tmp/report.html", width=390, dark=True)
    tab.click("th >> text=average")
    assert tab.run("document.title") == "Report"
    assert tab.errors == [] and tab.foreign_requests == []
    tab.screenshot("/tmp/report.png")
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OURS = {"127.0.0.1", "localhost", "::1"}
LONGEST = 10_000  # milliseconds that anything may take


class Tab:
    """One page: what it says, what it asked for, what went wrong in it."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()  # playwright's own, for whatever is not offered here
        self.page.set_default_timeout(LONGEST)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._listen)

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def go(self, url: str | Path) -> None:
        self.page.goto(url.absolute().as_uri() if isinstance(url, Path) else url)

    def run(self, script: str, argument: Any = None) -> Any:
        """The value of an expression, or of a function `x => ...` of the argument; a promise is waited for."""
        return self.page.evaluate(script, argument)

    def wait(self, script: str, argument: Any = None, seconds: float = 10.0) -> None:
        """Until an expression is true; asked from outside again and again, since a page may forbid eval."""
        end = time.monotonic() + seconds
        while not self.run(script, argument):
            assert time.monotonic() < end, f"not true after {seconds:g} s: {script}"
            self.page.wait_for_timeout(50)

    def click(self, selector: str) -> None:
        self.page.click(selector)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def dark(self, wanted: bool = True) -> None:
        self.page.emulate_media(color_scheme="dark" if wanted else "light")

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def colour(self, selector: str, of: str = "background-color") -> tuple[float, ...]:
        """(red, green, blue) of an element, as computed."""
        found = self.run("([s, of]) => getComputedStyle(document.querySelector(s))[of]", [selector, of])
        return tuple(float(part) for part in found[found.index("(") + 1 : -1].split(",")[:3])

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than its window: a page that fits a phone has none."""
        return self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    @property
    def foreign_requests(self) -> list[str]:
        """Requests that leave the machine."""
        return [url for url in self.requests if _leaves(url)]

    def screenshot(self, path: str | Path, whole: bool = True) -> None:
        self.page.screenshot(path=str(path), full_page=whole)


def _leaves(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob", "about") and parts.hostname not in OURS


class Browser:
    """Opens tabs, each in a session of its own: no cookie or storage of another test."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium
        self._contexts: list[Any] = []

    def open(self, url: str | Path = "about:blank", width: int = 1200, height: int = 800, dark: bool = False) -> Tab:
        scheme = "dark" if dark else "light"
        size = {"width": width, "height": height}
        context = self._chromium.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        self._contexts.append(context)
        tab = Tab(context)
        tab.go(url)
        return tab

    def close(self) -> None:
        while self._contexts:
            self._contexts.pop().close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one Chromium of a test process: it takes a second to start."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(PROGRAMS)} is installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'bdr[dev]'")
    with playwright.sync_playwright() as driver:
        # Chromium refuses to run as root, as in most containers, inside its sandbox; /dev/shm is small there.
        started = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    opened = Browser(chromium)
    yield opened
    opened.close()
