"""All runs that are watched: read once, and again only when their files have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bdr.errors import BdrError
from bdr.records import Run
from bdr.report import compare, comparison_sheets, natural_order
from bdr.watch.folders import Look, leads_outside, looks
from bdr.watch.kept import STRANGE, Kept, id_of, read

AT_ONCE = 0.5  # seconds after which reading stops, so that what was read so far is shown
HAND_OVER = 0.01  # seconds between two looks, in which other threads can take the lock


class Board:
    """What is known of the runs below some folders; changes are numbered, so that a reader can ask for new ones."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = [Path(root).resolve() for root in roots]
        self.kept: dict[str, Kept] = {}
        self.gone: dict[str, int] = {}
        self.version = 0
        self.measured = 0  # the version of the last change that touches the comparison
        self.pending = 0  # how many runs have been found but not yet read
        self._comparisons: dict[tuple[str, ...], tuple[int, list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    def look(self, at_once: float = AT_ONCE) -> None:
        """Notice what is new, changed or gone; read the last written first, and stop after `at_once` seconds."""
        with self._lock:
            found = {id_of(path): look for path, look in looks(self.roots).items()}
            changed = [key for key, look in found.items() if self._is_news(key, look)]
            changed.sort(key=lambda key: -found[key].touched)
            self._remove(self.kept.keys() - found.keys())
            end = time.monotonic() + at_once
            unread = len(changed)
            for key in changed:
                self._take(key, read(found[key]))
                unread -= 1
                if time.monotonic() > end:
                    break
            self._refresh(found)
            self._tell_pending(unread)

    def look_through(self, at_once: float = AT_ONCE) -> None:
        """Look until all runs that were found have been read; between two looks, other requests are answered."""
        self.look(at_once)
        for _ in range(self.pending):  # a look reads at least one run: this ends even if runs keep changing
            if not self.pending:
                break
            time.sleep(HAND_OVER)
            self.look(at_once)

    def _is_news(self, key: str, look: Look) -> bool:
        return key not in self.kept or self.kept[key].look.signature != look.signature

    def _take(self, key: str, kept: Kept) -> None:
        before = self.kept.get(key)
        self.kept[key] = kept
        kept.refresh(time.time())
        kept.version = self.version = self.version + 1
        self.gone.pop(key, None)
        if before is None or _measure(before) != _measure(kept):
            self.measured = self.version

    def _remove(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self.kept[key]
            self.version += 1
            self.gone[key] = self.measured = self.version

    def _refresh(self, found: dict[str, Look]) -> None:
        """Update all states, since time has passed; a checkpoint is a sign of life, although no record has changed."""
        for key, kept in self.kept.items():
            if kept.look.signature == found[key].signature:
                kept.look = found[key]
            if kept.refresh(time.time()):
                kept.version = self.version = self.version + 1

    def _tell_pending(self, unread: int) -> None:
        if unread != self.pending:
            self.pending = unread
            self.version += 1

    def since(self, version: int) -> dict[str, Any]:
        """Everything that has changed since a version; since version 0, everything there is."""
        with self._lock:
            return {
                "version": self.version,
                "pending": self.pending,
                "measured": self.measured,
                "runs": [kept.row() for kept in self.kept.values() if kept.version > version],
                "gone": [key for key, when in self.gone.items() if when > version],
            }

    def curves(self, key: str) -> dict[str, Any] | None:
        """The curves of a run; None if no run has this id."""
        with self._lock:
            kept = self.kept.get(key)
            return None if kept is None else {"id": key, "version": kept.version, **kept.curves}

    def comparison(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """The tables of `bdr show` over these runs, or over all; they are made again only if results have changed."""
        with self._lock:
            version = self.measured
            known = self._comparisons.get(keys)
            if known is None or known[0] != version:
                self._comparisons = {keys: (version, _tables(self._results(keys)))}
            return {"measured": version, "tables": self._comparisons[keys][1]}

    def _results(self, keys: tuple[str, ...]) -> list[Run]:
        wanted = [self.kept[key] for key in keys if key in self.kept] if keys else list(self.kept.values())
        runs: list[Run] = [kept.run for kept in wanted if kept.run is not None and kept.run.phases]
        return runs if keys else sorted(runs, key=natural_order)

    def open_runs(self, keys: tuple[str, ...]) -> tuple[list[Run], list[str], int]:
        """The chosen runs opened in full for a report, what was skipped, and a version that changes when they do."""
        with self._lock:
            runs, version = self._results(keys), self.measured
            found = {kept.look.path: kept.look for kept in self.kept.values()}
            skipped = [] if keys else [f"skipped {kept.look.path}: {kept.trouble}" for kept in self._damaged()]
            lost = [kept.trouble for kept in self.kept.values() if kept.run in runs and kept.trouble]
        inside = [run for run in runs if leads_outside(found[run.path]) is None]
        return [replace(Run.open(run.path), steps_lost=run.steps_lost) for run in inside], [*lost, *skipped], version

    def _damaged(self) -> list[Kept]:
        return sorted((kept for kept in self.kept.values() if kept.run is None), key=lambda kept: kept.look.path)


def _measure(kept: Kept) -> tuple[int, bool, bool] | None:
    """What a comparison depends on in a run; None for a run that cannot be read."""
    return None if kept.run is None else (len(kept.run.phases), kept.run.done, kept.run.steps_lost)


def _tables(runs: list[Run]) -> list[dict[str, Any]]:
    if not runs:
        return []
    try:
        sheets = comparison_sheets(compare(runs))
    except STRANGE as error:
        words = str(error) if isinstance(error, BdrError) else f"{type(error).__name__}: {error}"
        return [{"title": "", "header": [], "rows": [], "notes": [f"These runs cannot be compared: {words}"]}]
    return [{"title": each.title, "header": each.header, "rows": each.rows, "notes": each.notes} for each in sheets]
