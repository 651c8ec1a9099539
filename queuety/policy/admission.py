"""Whether a job may begin here: its handler's profile against the worker, the machine and the time left."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from queuety.policy.profile import Profile

MB = 1 << 20
MATTERS = MB  # bytes; a handler that takes less is never held up for memory
PRESSED = 10.0  # percent of the time in which everything stood still for want of memory


class Kind(enum.StrEnum):
    """What there is too little of."""

    WORKER = "worker"
    SYSTEM = "system"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Here:
    """Begin it."""


@dataclass(frozen=True, slots=True)
class NotHere:
    """Leave it. reason: for people, with figures.  fresh: a new worker in place of this one can take it."""

    kind: Kind
    reason: str
    fresh: bool = False


Answer: TypeAlias = Here | NotHere
HERE = Here()


@dataclass(frozen=True, slots=True)
class Rules:
    """What is kept free. memory, system: bytes.  time_s: seconds.  aware: whether the machine's memory counts."""

    memory: int = 16 * MB
    system: int = 128 * MB
    time_s: float = 0.5
    aware: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job would run. Bytes; None: not known.

    limit: of the worker, 0 for none.  kept: that limit is a promise, and not only when to replace a worker.
    base: what a worker takes before its first job.  size: what this one takes now.
    available: what the machine can still give, what running jobs may yet take subtracted.
    pressure: percent of the time in which all stood still for want of memory.  alone: no other job runs in the pool.
    left_s: seconds until the end of the run; None: it has none.
    """

    limit: int = 0
    kept: bool = True
    base: int = 0
    size: int = 0
    available: int | None = None
    pressure: float = 0.0
    alone: bool = True
    left_s: float | None = None


def admit(profile: Profile | None, place: Place, rules: Rules) -> Answer:
    """Say whether a job may begin here.

    A handler without a history is let in: nobody knows anything against it. The size of the worker itself is in
    `place.size` and not in the profile, whose peak is what a run takes on top of it.
    """
    if profile is None:
        return HERE
    answer: Answer = _time(profile, place, rules)
    if answer == HERE and profile.peak is not None and profile.peak >= MATTERS:
        passing = profile.peak if profile.passing is None else profile.passing
        answer = _worker(passing, place, rules)
        if answer == HERE and rules.aware:
            answer = _system(profile.peak, place, rules)
    return answer


def room_for(profile: Profile | None, place: Place, rules: Rules) -> int:
    """How many such jobs, each in a worker that has just begun, the machine has room for: 0 to 1000."""
    if profile is None or profile.peak is None:
        return 1000
    peak = profile.peak
    passing = peak if profile.passing is None else profile.passing
    fresh = Place(place.limit, place.kept, place.base, place.base)
    if _worker(passing, fresh, rules) != HERE:
        return 0
    if not rules.aware or _system(peak, place, rules) == HERE:
        if not rules.aware or place.available is None or peak < MATTERS:
            return 1000
        return 1 if place.pressure >= PRESSED else min((place.available - rules.system) // peak, 1000)
    return 0


def _time(profile: Profile, place: Place, rules: Rules) -> Answer:
    if place.left_s is None:
        return HERE
    need = max(profile.mean_s, profile.p95_s)
    if need + rules.time_s <= place.left_s:
        return HERE
    return NotHere(Kind.TIME, f"it takes {need:.1f} s, and {max(place.left_s, 0.0):.1f} s are left")


def _worker(peak: int, place: Place, rules: Rules) -> Answer:
    limit = place.limit
    if not limit or place.size + peak + rules.memory <= limit:
        return HERE
    fresh = place.base + peak + rules.memory <= limit
    if not fresh and not place.kept:
        return HERE  # nobody has promised that limit: it only says when to replace a worker
    size = place.size if fresh else place.base
    text = f"it takes {_mb(peak)} on top of the worker's {_mb(size)}, and the worker's limit is {_mb(limit)}"
    return NotHere(Kind.WORKER, f"{text} with {_mb(rules.memory)} kept free", fresh)


def _system(peak: int, place: Place, rules: Rules) -> Answer:
    if place.available is not None and peak + rules.system > place.available:
        text = f"it takes {_mb(peak)}, and {_mb(max(place.available, 0))} are to be had here"
        return NotHere(Kind.SYSTEM, f"{text} with {_mb(rules.system)} kept free")
    if place.pressure >= PRESSED and not place.alone:
        text = f"all stood still for want of memory {place.pressure:.0f} % of the last ten seconds"
        return NotHere(Kind.SYSTEM, text)
    return HERE


def _mb(size: int) -> str:
    return f"{size / MB:.0f} MB"
