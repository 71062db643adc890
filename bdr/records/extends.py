"""What run.json records about the run that was extended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Extends:
    """The run that this one extends, as run.json records it, and the bounds of all phases, the extended run's first."""

    run: str  # its folder
    fingerprint: str
    seed: int
    protocol: str  # a checksum of its protocol facts, without those that depend on the method
    model: str  # the sha256 of its tensors
    phases: int  # how many were taken over
    classes: int  # how many it knew
    mean: tuple[float, ...]  # old images were normalised with these two, and new ones are too
    std: tuple[float, ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, info: dict[str, Any]) -> Extends | None:
        """Read it from the content of run.json; None for a run that extends no other."""
        if "extends" not in info:
            return None
        told = info["extends"] | {"bounds": tuple((old, seen) for old, seen in info["phases"])}
        return cls(**told | {"mean": tuple(told["mean"]), "std": tuple(told["std"])})

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "bounds"}

    def facts(self) -> dict[str, Any]:
        """The protocol facts that tell an extended run from one that trained all phases; the same for all methods."""
        further = [seen - old for old, seen in self.bounds[self.phases :]]
        return {"extends": self.protocol, "further": "+".join(map(str, further))}

    def trained_by(self, seed: int) -> list[Any]:
        """What identifies the extended run in the fingerprint; its seed is left out if it equals `seed`."""
        return [self.fingerprint, *([self.seed] if seed != self.seed else [])]
