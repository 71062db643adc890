"""The language of --only: words with & (and), | (or), ! (not) and parentheses.

A word is looked for in table, method, dataset and metric, ignoring case; S=10, R=5, B=50, beta=0.5 and split=old
compare one value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bdr.errors import UsageError
from bdr.paper.cells import EXTRA, Cell

Predicate = Callable[[Cell], bool]
PLAIN = ("table", "method", "dataset", "metric", "memory", "B", "S", "R")
KEYS = {name.lower(): name for name in (*PLAIN, *EXTRA)}
DEEPEST = 100  # levels of nested parentheses and !: more would exhaust Python's own stack


class Token(NamedTuple):
    text: str
    place: int  # characters before it


def parse_only(text: str | None) -> Predicate:
    """A predicate that says whether the expression chooses a cell; without an expression it chooses all."""
    if text is None:
        return lambda cell: True
    parser = Parser(text, [Token(found[0], found.start()) for found in re.finditer(r"[&|!()]|[^\s&|!()]+", text)])
    chosen = parser.either()
    if parser.next is not None:
        raise parser.refusal("'&' or '|' is missing before it")
    return chosen


@dataclass
class Parser:
    """A parser that reads tokens from left to right; | binds loosest, ! tightest."""

    text: str
    tokens: list[Token]
    at: int = 0
    depth: int = 0

    @property
    def next(self) -> str | None:
        return self.tokens[self.at].text if self.at < len(self.tokens) else None

    def took(self, text: str) -> bool:
        found = self.next == text
        self.at += found
        return found

    def either(self) -> Predicate:
        options = [self.both()]
        while self.took("|"):
            options.append(self.both())
        return options[0] if len(options) == 1 else lambda cell: any(option(cell) for option in options)

    def both(self) -> Predicate:
        demands = [self.one()]
        while self.took("&"):
            demands.append(self.one())
        return demands[0] if len(demands) == 1 else lambda cell: all(demand(cell) for demand in demands)

    def one(self) -> Predicate:
        if self.took("!"):
            return self.deeper(self.denial)
        if self.took("("):
            return self.deeper(self.group)
        if self.next is None or self.next in "&|)":
            raise self.refusal("a word should stand here")
        word = self.next
        chosen = self.value_test(word) if "=" in word else word_test(word)
        self.at += 1
        return chosen

    def deeper(self, part: Callable[[], Predicate]) -> Predicate:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.refusal(f"it is nested deeper than {DEEPEST} times")
        chosen = part()
        self.depth -= 1
        return chosen

    def denial(self) -> Predicate:
        denied = self.one()
        return lambda cell: not denied(cell)

    def group(self) -> Predicate:
        inner = self.either()
        if not self.took(")"):
            raise self.refusal(
                "a ')' should stand here" if self.next is None else "'&', '|' or ')' is missing before it"
            )
        return inner

    def value_test(self, word: str) -> Predicate:
        name, _, value = word.partition("=")
        if name.lower() not in KEYS:
            raise self.refusal(f"there is no '{name}'; there are {', '.join(KEYS.values())}")
        if not value:
            raise self.refusal(f"a value is missing, for example {name}=10")
        key = KEYS[name.lower()]
        return lambda cell: same(getattr(cell, key) if key in PLAIN else cell.get(key), value)

    def refusal(self, said: str) -> UsageError:
        end = self.at == len(self.tokens)
        where = "at its end" if end else f"at character {self.tokens[self.at].place + 1} ('{self.next}')"
        return UsageError(f"--only '{self.text}' is wrong {where}: {said}; write it like: cifar100 & (ucir|cwd) & S=10")


def squeezed(text: str) -> str:
    """The text without case, blanks, hyphens and underscores: cifar100 is CIFAR-100, cwd+bdr is CwD + BDR."""
    return re.sub(r"[\s_-]", "", text.lower())


def word_test(word: str) -> Predicate:
    wanted = squeezed(word)
    return lambda cell: any(wanted in squeezed(text) for text in texts_of(cell))


def texts_of(cell: Cell) -> tuple[str, ...]:
    return cell.table, cell.method, " + ".join(cell.parts), cell.dataset, cell.metric


def same(value: Any, given: str) -> bool:
    if value is None:
        return False
    try:
        return float(value) == float(given)
    except ValueError:
        return squeezed(str(value)) == squeezed(given)
