"""What a handler's runs have taken lately: how long, and how much memory at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

CLASSES = 64  # of durations, each longer by the square root of 2 than the one before: 0.24 ms to over 8 days
_FIRST = 24  # the class that ends at one second
_QUICK_S = 2.0 ** (-_FIRST / 2)


@dataclass(frozen=True, slots=True)
class Profile:
    """A handler's recent runs.

    peak: bytes that a run has taken at most.  passing: bytes that one has taken and given back; what is left of the
    peak has made the worker larger, and is counted with that.  None: not known.
    """

    runs: int
    mean_s: float
    p95_s: float
    peak: int | None
    passing: int | None = None


@dataclass(slots=True)
class Tally:
    """Runs, added up. seconds: of all runs.  durations: runs by class.  peak, passing: bytes, the most of one run."""

    runs: int = 0
    seconds: float = 0.0
    durations: list[int] = field(default_factory=lambda: [0] * CLASSES)
    peak: int | None = None
    passing: int | None = None

    def add(self, seconds: float) -> None:
        """Count one run. On the way of every job: cheap."""
        self.runs += 1
        self.seconds += seconds
        self.durations[class_of(seconds) if seconds > _QUICK_S else 0] += 1

    def took(self, peak: int, passing: int) -> None:
        """Take in the most memory that a run has taken, and given back."""
        self.peak = max(self.peak or 0, peak)
        self.passing = max(self.passing or 0, passing)

    def merge(self, other: Tally) -> None:
        self.runs += other.runs
        self.seconds += other.seconds
        self.durations = [a + b for a, b in zip(self.durations, other.durations, strict=True)]
        if other.peak is not None:
            self.took(other.peak, other.peak if other.passing is None else other.passing)

    def profile(self) -> Profile | None:
        """The figures that decide; None without a run."""
        if not self.runs:
            return None
        return Profile(
            self.runs, self.seconds / self.runs, percentile(self.durations, 0.95), self.peak, self.passing
        )


def class_of(seconds: float) -> int:
    """The class of a duration, 0 to CLASSES - 1: each ends with its longest."""
    if seconds <= _QUICK_S:
        return 0
    return min(math.ceil(2 * math.log2(seconds) - 1e-9) + _FIRST, CLASSES - 1)


def percentile(durations: Sequence[int], share: float) -> float:
    """Seconds within which that share of the runs has ended, by classes: too long by the square root of 2 at most.

    share: 0 to 1.  Returns 0 without a run.
    """
    wanted = share * sum(durations)
    before = 0
    for place, runs in enumerate(durations):
        if runs and before + runs >= wanted:
            within = (wanted - before) / runs  # geometrically, within the class
            return float(2.0 ** ((place - _FIRST - 1 + max(within, 0.0)) / 2))
        before += runs
    return 0.0
