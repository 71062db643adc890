"""Many files at once: their order, what is read ahead, and what is told of a long wait."""

import itertools
import time
from pathlib import Path

import pytest

from bdr.data import reading
from bdr.data.reading import AT_ONCE, side_by_side

FILES = [Path(str(number)) for number in range(3 * AT_ONCE + 5)]


def test_what_is_read_comes_in_the_order_of_the_files():
    def read(path):
        time.sleep(0.001 * (int(path.name) % 3))
        return path

    assert list(side_by_side(FILES, read)) == FILES


def test_only_some_files_are_read_ahead():
    read = []
    one = next(side_by_side(FILES, lambda path: read.append(path) or path))
    assert one == FILES[0]
    assert len(read) <= AT_ONCE


def test_what_a_reader_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(FILES[:3], lambda path: 1 // int(path.name)))


def test_a_short_wait_is_not_told_and_a_long_one_now_and_then(monkeypatch, caplog):
    caplog.set_level("INFO", "bdr")
    list(side_by_side(FILES, str))
    assert caplog.messages == []
    clock = itertools.count()  # a second between two looks at it
    monkeypatch.setattr(reading.time, "monotonic", lambda: next(clock))
    list(side_by_side(FILES[:20], str))
    assert caplog.messages == [
        "reading pictures: 3 of 20, about 17 s left",
        "reading pictures: 13 of 20, about 7 s left",
    ]
