"""The page in a real browser: it sorts, turns dark, hides lines, saves files, fits a phone, and asks nobody."""

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest
from directories import make_run, with_protocol

from bdr.report import write_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A page with two protocols, one of them with three seeds."""
    folder = tmp_path_factory.mktemp("page")
    skills = {"ucir": 0.6, "ucir+bdr": 0.8}
    runs = [make_run(folder, title, seed, skill=skill) for title, skill in skills.items() for seed in (1, 2, 3)]
    other = with_protocol(folder, "wa", step=3)
    return write_page(
        [*runs, other], folder / "page.html", "Digits", skipped=["skipped runs/torn: run.json is damaged"]
    )


@pytest.fixture
def tab(browser, file):
    opened = browser.open(file)
    yield opened
    assert opened.errors == []
    assert opened.foreign_requests == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def column(tab, number):
    return tab.texts(f"#results table >> nth=0 >> tbody tr > :nth-child({number})")


def heading(number):
    return f"#results table >> nth=0 >> thead th:nth-child({number})"


def test_a_table_sorts_by_click_and_back(tab):
    assert [name.strip() for name in column(tab, 1)] == ["ucir", "ucir+bdr"]
    tab.click(f"{heading(3)} >> button")
    assert tab.page.get_attribute(heading(3), "aria-sort") == "descending"
    averages = [float(cell.split()[0]) for cell in column(tab, 3)]
    assert averages == sorted(averages, reverse=True)
    assert [name.strip() for name in column(tab, 1)] == ["ucir+bdr", "ucir"]
    tab.click(f"{heading(3)} >> button")
    assert tab.page.get_attribute(heading(3), "aria-sort") == "ascending"
    assert [name.strip() for name in column(tab, 1)] == ["ucir", "ucir+bdr"]


def test_a_table_sorts_by_keyboard_and_a_missing_number_stays_last(tab):
    for _ in range(2):
        tab.page.focus(f"{heading(4)} >> button")
        tab.page.keyboard.press("Enter")
        assert column(tab, 4)[-1] == "–"  # noqa: RUF001
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Space")
    assert tab.page.get_attribute(heading(4), "aria-sort") == "none"
    assert tab.page.get_attribute(heading(5), "aria-sort") == "descending"


def test_every_plot_is_there_and_has_a_size(tab):
    boxes = "[...document.querySelectorAll('figure > svg')].map(plot => plot.getBoundingClientRect())"
    sizes = tab.run(f"{boxes}.map(box => [box.width, box.height])")
    assert len(sizes) > 20
    assert all(width > 150 and height > 100 for width, height in sizes)
    assert tab.texts(".findings .what")[0].startswith("UCIR+BDR: ")
    assert "stand side by side" in tab.text(".warning.protocols")
    assert "run.json is damaged" in tab.text(".warning.skipped")


def is_dark(tab):
    return sum(tab.colour("body")) < 200


def test_the_page_follows_the_system_into_the_dark(tab):
    assert not is_dark(tab)
    tab.dark()
    assert is_dark(tab)
    assert sum(tab.colour("figure > svg", "color")) > 600
    assert tab.colour(".s0", "color") != (0, 114, 178)


def test_the_switch_wins_over_the_system_and_is_remembered(tab):
    tab.click(".switch")
    assert is_dark(tab)
    assert tab.text(".switch") == "Light page"
    tab.page.wait_for_timeout(500)  # a browser that is busy may store it later
    tab.page.reload()
    assert is_dark(tab)
    tab.dark()
    tab.click(".switch")
    assert not is_dark(tab)


def test_a_name_in_the_legend_hides_its_line_everywhere_in_its_chapter(tab):
    drawn = "[...chapter.querySelectorAll('figure > svg g.s1')].filter(part => part.getBoundingClientRect().width)"
    shown = f"[...document.querySelectorAll('.chapter')].map(chapter => {drawn}.length)"
    before = tab.run(shown)
    tab.click(".legend button[data-series='1'] >> nth=0")
    assert tab.page.get_attribute(".legend button[data-series='1'] >> nth=0", "aria-pressed") == "false"
    assert before[0] > 10
    assert tab.run(shown) == [0, *before[1:]]
    tab.click(".legend button[data-series='1'] >> nth=0")
    assert tab.run(shown) == before


def saved(tab, kind, place):
    with tab.page.expect_download() as waiting:
        tab.page.locator(f"figure button[data-save={kind}]").nth(place).click()
    found = waiting.value
    return found.suggested_filename, open(found.path(), encoding="utf-8").read()


def test_a_plot_is_saved_as_a_drawing_that_stands_alone(tab):
    tab.dark()
    name, text = saved(tab, "svg", 0)
    root = ElementTree.fromstring(text)
    assert name == "digits-b4-s2-3-per-class-accuracy.svg"
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "#0072b2" in text
    assert "var(" not in text


def test_the_data_of_a_plot_are_saved_as_csv_with_every_cell(tab):
    name, text = saved(tab, "csv", 0)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert name == "digits-b4-s2-3-per-class-accuracy.csv"
    assert [row["method"] for row in rows] == ["ucir"] * 4 + ["ucir+bdr"] * 4
    assert all(40 < float(row["mean"]) <= 100 for row in rows)


@pytest.mark.parametrize("width", [360, 768])
def test_the_page_fits_narrow_screens(tab, width):
    tab.resize(width, 740)
    tab.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.overflow == 0
    smallest = tab.run(
        "Math.min(...[...document.querySelectorAll('figure > svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert smallest >= 9
