"""The protocol: which classes arrive when. Class orders by name, base and step, and the phases they make."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bdr.errors import UsageError, shortened, unknown
from bdr.types import Phase

# Class orders of published runs. Element i is the label that the data set gives to the class that arrives as number i.
DER_TRIAL_0 = """
62 54 84 20 94 22 40 29 78 27 26 79 17 76 68 88 3 19 31 21 33 60 24 14 6 10 16 82 70 92 25 5 28 9 61 36 50 90
8 48 47 56 11 98 35 93 44 64 75 66 15 38 97 42 43 12 37 55 72 95 18 7 23 71 49 53 57 86 39 87 34 63 81 89 69
46 2 1 73 32 67 91 0 51 83 13 58 80 74 65 4 30 45 77 99 85 41 96 59 52
"""
PODNET_1 = """
87 0 52 58 44 91 68 97 51 15 94 92 10 72 49 78 61 14 8 86 84 96 18 24 32 45 88 11 4 67 69 66 77 47 79 93 29 50
57 83 17 81 41 12 37 59 25 20 80 73 1 28 6 46 62 82 53 9 31 75 38 63 33 74 27 22 36 3 16 21 60 19 70 90 89 43
5 42 65 76 40 30 23 85 2 95 56 48 71 64 98 13 99 7 34 55 54 26 35 39
"""
PODNET_2 = """
58 30 93 69 21 77 3 78 12 71 65 40 16 49 89 46 24 66 19 41 5 29 15 73 11 70 90 63 67 25 59 72 80 94 54 33 18
96 2 10 43 9 57 81 76 50 32 6 37 7 68 91 88 95 85 4 60 36 22 27 39 42 34 51 55 28 53 48 38 17 83 86 56 35 45
79 99 84 97 82 98 26 47 44 62 13 31 0 75 14 52 74 8 20 1 92 87 23 64 61
"""
PODNET_3 = """
71 54 45 32 4 8 48 66 1 91 28 82 29 22 80 27 86 23 37 47 55 9 14 68 25 96 36 90 58 21 57 81 12 26 16 89 79 49
31 38 46 20 92 88 40 39 98 94 19 95 72 24 64 18 60 50 63 61 83 76 69 35 0 52 7 65 42 73 74 30 41 3 6 53 13 56
70 77 34 97 75 2 17 93 33 84 99 51 62 87 5 15 10 78 67 44 59 85 43 11
"""

NAMED_ORDERS = {
    "der-0": DER_TRIAL_0,
    "der-2": PODNET_1,
    "der-3": PODNET_2,
    "der-4": PODNET_3,
    "podnet-1": PODNET_1,
    "podnet-2": PODNET_2,
    "podnet-3": PODNET_3,
}
ORDER_FORMS = (
    "seed-N (the papers use seed-1993, which is der-1)",
    "natural",
    *NAMED_ORDERS,
    "a list of all classes, as numbers such as 3,0,1,2 or by their names",
)


def class_order(name: str, classes: int, names: Sequence[str] = ()) -> tuple[int, ...]:
    """The labels of the data set in order of arrival; `names` holds the names of its classes, by label."""
    if name == "natural":
        return tuple(range(classes))
    if seeded := re.fullmatch(r"seed-(\d+)", "seed-1993" if name == "der-1" else name):
        return seeded_order(int(seeded[1]), classes)
    if name in NAMED_ORDERS:
        return permutation_of(NAMED_ORDERS[name].split(), classes, name)
    if given := listed_names(name, names):
        return order_of_names(given, names)
    if re.fullmatch(r"\d+([, ]+\d+)*", name.strip()):
        return permutation_of(re.findall(r"\d+", name), classes, f"'{name}'")
    raise UsageError(f"no class order '{name}'; there are {', '.join(ORDER_FORMS)}")


def seeded_order(seed: int, classes: int) -> tuple[int, ...]:
    if seed >= 2**32:
        raise UsageError(f"the class order seed-{seed} is not possible: a seed is at most {2**32 - 1}")
    return tuple(int(i) for i in np.random.RandomState(seed).permutation(classes))


def permutation_of(numbers: list[str], classes: int, name: str) -> tuple[int, ...]:
    order = tuple(map(int, numbers))
    if sorted(order) != list(range(classes)):
        raise UsageError(
            f"the class order {name} has {len(order)} entries up to {max(order)}, and must name each of the "
            f"{classes} classes 0 to {classes - 1} once; use seed-1993 for any number of classes"
        )
    return order


def listed_names(order: str, names: Sequence[str]) -> list[str]:
    """The class names that an order lists between commas; none if it lists labels (numbers), or no known name."""
    given = [unicodedata.normalize("NFC", each.strip()) for each in order.split(",")]  # as the names of folders are
    numbers = all(each.isdecimal() and int(each) < len(names) for each in given)
    return [] if numbers or not set(given) & set(names) else given


def order_of_names(given: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    for name in given:
        if name not in names:
            raise unknown("class of the --order", name, names)
    if lacking := [name for name in names if name not in given]:
        raise UsageError(f"--order leaves out {shortened(lacking)}: it must name each of the {len(names)} classes once")
    if twice := [name for name in names if given.count(name) > 1]:
        raise UsageError(f"--order names {shortened(twice)} more than once: it must name each class once")
    return tuple(map(list(names).index, given))


def split_evenly(classes: int, step: int | None, uneven: bool = False) -> list[int]:
    """The sizes of the phases that bring these further classes, `step` in each; all in one phase if it is None."""
    step = classes if step is None else step
    if step < 1:
        raise UsageError(f"--step {step} is not allowed: a phase brings 1 class or more")
    if classes % step and not uneven:
        fitting = ", ".join(str(s) for s in range(1, classes + 1) if classes % s == 0)
        raise UsageError(
            f"{classes} new classes do not split into phases of {step}: use a --step of {fitting}, or "
            "--set uneven=true for a smaller last phase"
        )
    return [min(step, classes - start) for start in range(0, classes, step)]


@dataclass(frozen=True, slots=True)
class Given:
    """The protocol of a run that extends another: phases whose bounds are given."""

    order: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]

    def __iter__(self) -> Iterator[Phase]:
        return (Phase(index, old, seen) for index, (old, seen) in enumerate(self.bounds))

    def __len__(self) -> int:
        return len(self.bounds)


@dataclass(frozen=True, slots=True)
class Protocol:
    """`base` classes in the first phase (0 = as many as a step), then `step` in each, in the given order."""

    order: tuple[int, ...]
    base: int
    step: int
    uneven: bool = False  # a smaller last phase is allowed

    def __post_init__(self) -> None:
        classes, first = len(self.order), self.base or self.step
        if self.base < 0 or self.step < 1:
            raise UsageError(f"a base of {self.base} and steps of {self.step}: the base is 0 or more, a step 1 or more")
        if first > classes:
            raise UsageError(
                f"the first phase wants {first} classes and there are {classes}; use {self.fitting_base()}"
            )
        left = (classes - first) % self.step
        if left and not self.uneven:
            raise UsageError(
                f"{classes} classes do not split into a base of {self.base} and steps of {self.step}: {left} would be "
                f"left over; use a step of {self.fitting_steps()}, or --uneven for a smaller last phase"
            )

    def fitting_base(self) -> str:
        """The options for a base of about half of the classes and steps that come out even."""
        classes = len(self.order)
        later = classes - classes // 2
        if self.step >= classes:
            return f"--base {classes // 2} --step {later}"
        return f"--base {classes - self.step * -(-later // self.step)}"

    def fitting_steps(self) -> str:
        rest = len(self.order) - self.base
        steps = [str(s) for s in range(2, rest + 1) if rest % s == 0] or ["1"]
        return steps[0] if len(steps) == 1 else ", ".join(steps[:-1]) + " or " + steps[-1]

    def __iter__(self) -> Iterator[Phase]:
        old, seen, index = 0, self.base or self.step, 0
        while old < len(self.order):
            seen = min(seen, len(self.order))
            yield Phase(index, old, seen)
            old, seen, index = seen, seen + self.step, index + 1

    def __len__(self) -> int:
        return sum(1 for _ in self)
