"""What run.json says of the run that another one extends."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Extends:
    """The run that another one extends, as run.json has it; and the bounds of all phases, its own first."""

    run: str  # its folder
    fingerprint: str
    seed: int
    protocol: str  # a checksum of the facts that results of other methods share with it
    model: str  # the sha256 of its tensors
    phases: int  # that were taken over
    classes: int  # that it knew
    mean: tuple[float, ...]  # its images were normalised so, and further ones are too
    std: tuple[float, ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, info: dict[str, Any]) -> Extends | None:
        """What a run.json says; None for a run that extends no other."""
        if "extends" not in info:
            return None
        told = info["extends"] | {"bounds": tuple((old, seen) for old, seen in info["phases"])}
        return cls(**told | {"mean": tuple(told["mean"]), "std": tuple(told["std"])})

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "bounds"}

    def facts(self) -> dict[str, Any]:
        """What sets such a run apart from one that trained all of its phases, and does not from other methods."""
        further = [seen - old for old, seen in self.bounds[self.phases :]]
        return {"extends": self.protocol, "further": "+".join(map(str, further))}

    def trained_by(self, seed: int) -> list[Any]:
        """Which run it was, for the fingerprint; its seed goes without saying where it is the same."""
        return [self.fingerprint, *([self.seed] if seed != self.seed else [])]
