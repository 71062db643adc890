"""The browser that other tests drive."""

import pytest

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><title>A page</title><link rel="icon" href="data:,">
<style>body { background: #fff } @media (prefers-color-scheme: dark) { body { background: #000 } }</style>
<button onclick="this.textContent = 'clicked'">click</button><div style="width: 900px">wide</div>
<img src="http://far.invalid/picture.png"><script>setTimeout(() => console.error("oh"), 50)</script>"""


def test_a_tab_says_what_a_page_does(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    tab = browser.open(tmp_path / "page.html")
    tab.click("button")
    assert tab.text("button") == "clicked"
    assert tab.run("document.title") == "A page"
    tab.wait("document.images[0].complete")
    assert tab.foreign_requests == ["http://far.invalid/picture.png"]
    tab.page.wait_for_timeout(100)
    assert "error: oh" in tab.errors


def test_a_tab_can_be_dark_and_narrow(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    tab = browser.open(tmp_path / "page.html")
    assert tab.colour("body") == (255, 255, 255)
    assert tab.overflow == 0
    tab.dark()
    tab.resize(400, 700)
    assert tab.colour("body") == (0, 0, 0)
    assert tab.overflow > 400
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
