"""Which runs the cells ask for, which of them exist, and how long the missing ones take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bdr.display import duration
from bdr.errors import UsageError
from bdr.paper.cost import workload
from bdr.paper.found import Results
from bdr.paper.mapping import Wanted
from bdr.paper.verdicts import Judged
from bdr.records.speed import Setup, Speed, kind_of, measured

SEEDS = (1993, 1994, 1995)  # chosen before the first run was made
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Job:
    """A configuration that cells ask for, the seeds that exist, and those that are missing."""

    wanted: Wanted
    have: tuple[int, ...]
    missing: tuple[int, ...]
    speed: Speed | None

    @property
    def seconds(self) -> float | None:
        """The seconds that one run takes; None if its speed is unknown."""
        return None if self.speed is None else self.speed.seconds(self.images)

    @property
    def images(self) -> list[int]:
        """The images that one run trains on, by phase."""
        return workload(self.wanted.config(seed=0))

    @property
    def time(self) -> str:
        return UNKNOWN if self.seconds is None else duration(self.seconds)


@dataclass(frozen=True)
class Schedule:
    jobs: tuple[Job, ...]
    notes: tuple[str, ...]
    at_once: int = 1

    @property
    def missing(self) -> list[tuple[Wanted, int]]:
        """The runs to make: every configuration with its first missing seed, then every one with its next.

        If several run at once, the longest come first, so that none of them is left alone at the end.
        """
        most = max((len(job.missing) for job in self.jobs), default=0)
        jobs = self.jobs if self.at_once == 1 else sorted(self.jobs, key=lambda job: -sum(job.images))
        return [(job.wanted, job.missing[at]) for at in range(most) for job in jobs if at < len(job.missing)]


def counted_seeds(text: str) -> list[int]:
    """The seeds that a text means: `3` is the first three of SEEDS, not seed 3; `1993,1994` or `7,` are these seeds."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    counted = "," not in text and len(numbers) == 1 and numbers[0] not in SEEDS
    if not numbers or min(numbers) < 0 or (counted and not 1 <= numbers[0] <= len(SEEDS)):
        raise UsageError(
            f"--seeds {text} is neither a number from 1 to {len(SEEDS)} (the first of {', '.join(map(str, SEEDS))}) "
            "nor a list such as 1993,1994,1995,1996"
        )
    return list(SEEDS[: numbers[0]]) if counted else list(dict.fromkeys(numbers))


def schedule_of(
    judged: Sequence[Judged], results: Results, seeds: Sequence[int], device: str, at_once: int = 1
) -> Schedule:
    """The runs behind the cells, once each, and notes on how long the missing ones take, `at_once` at a time."""
    wanted = list(dict.fromkeys(each.wanted for each in judged if each.wanted))
    speeds = speeds_of(wanted, results, device, at_once)
    jobs = tuple(job_of(each, results, seeds, speeds[each]) for each in wanted)
    return Schedule(jobs, tuple(time_notes(jobs, results, device, at_once)), at_once)


def speeds_of(wanted: Sequence[Wanted], results: Results, device: str, at_once: int) -> dict[Wanted, Speed | None]:
    kinds = {each: (each.spec, net_of(each)) for each in wanted}
    speeds = {(spec, net): measured(results, spec, Setup(net, device), at_once) for spec, net in set(kinds.values())}
    return {each: speeds[kind] for each, kind in kinds.items()}


def net_of(wanted: Wanted) -> str:
    return str(dict(wanted.fields)["net"])


def job_of(wanted: Wanted, results: Results, seeds: Sequence[int], speed: Speed | None) -> Job:
    have = tuple(results.of(wanted))
    return Job(wanted, have, tuple(seed for seed in seeds if seed not in have), speed)


def time_notes(jobs: Sequence[Job], results: Results, device: str, at_once: int) -> list[str]:
    """Notes on how long the missing runs take on this device, and on others if nothing was measured on this one."""
    missing = [job for job in jobs if job.missing]
    if not missing:
        return ["Nothing is missing."] if jobs else []
    speeds = {job.wanted: job.speed for job in missing}
    notes = [time_note(alike, net, speed, device) for (net, speed), alike in grouped(missing, speeds).items()]
    untimed = [job for job in missing if job.speed is None]
    further = [note for kind in kinds(results, device) for note in elsewhere(untimed, kind, results, at_once)]
    return [*notes, *together(missing, speeds, f"On {device}"), *further]


def grouped(jobs: Sequence[Job], speeds: Mapping[Wanted, Speed | None]) -> dict[tuple[str, Speed | None], list[Job]]:
    """The jobs by network and speed; one sentence can give the time of each group."""
    found: dict[tuple[str, Speed | None], list[Job]] = {}
    for job in jobs:
        found.setdefault((net_of(job.wanted), speeds[job.wanted]), []).append(job)
    return found


def time_note(jobs: Sequence[Job], net: str, speed: Speed | None, device: str) -> str:
    if speed is None:
        return f"{counted(jobs)} of {net}: time unknown on {device}, where no record of {net} was made."
    return f"{counted(jobs)} of {net}: {total(jobs, speed)}; less where runs share their first phase."


def counted(jobs: Sequence[Job]) -> str:
    count = sum(len(job.missing) for job in jobs)
    return f"{count} missing run{'' if count == 1 else 's'}"


def elsewhere(jobs: Sequence[Job], kind: str, results: Results, at_once: int) -> list[str]:
    speeds = speeds_of([job.wanted for job in jobs], results, kind, at_once)
    groups = grouped(jobs, speeds).items()
    notes = [f"On {kind}, {counted(alike)}: {total(alike, speed)}." for (_, speed), alike in groups if speed]
    return [*notes, *together(jobs, speeds, f"On {kind}")]


def together(jobs: Sequence[Job], speeds: Mapping[Wanted, Speed | None], where: str) -> list[str]:
    """A note with the total time if there are several groups; else nothing, because one sentence has it already."""
    groups = [(speed, alike) for (_, speed), alike in grouped(jobs, speeds).items() if speed]
    seconds = sum(seconds_of(alike, speed) for speed, alike in groups)
    return [f"{where} about {duration(seconds)} together."] if len(groups) > 1 else []


def seconds_of(jobs: Sequence[Job], speed: Speed) -> float:
    """The seconds of all missing runs, divided by the number side by side with which the speed was measured."""
    alone = sum(speed.seconds(job.images) * len(job.missing) for job in jobs)
    return alone / (speed.beside or 1)


def total(jobs: Sequence[Job], speed: Speed) -> str:
    rates = f"a run: {speed.first:,.0f} images/s in the first phase, {speed.later:,.0f} in later ones"
    return f"about {duration(seconds_of(jobs, speed))} {speed.circumstances}, from {speed.told} ({rates})"


def kinds(results: Results, device: str) -> list[str]:
    return sorted({kind for run in results if (kind := kind_of(run)) and kind != device})
