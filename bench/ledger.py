"""The external ledger: a file in which handlers note what they really did, and what can be told from it alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.common import BenchError


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. began, ended: monotonic nanoseconds; a killed run ends with the kill."""

    job: int
    began: int
    ended: int
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """An open file to append to, by the handlers of any number of pools."""

    fd: int
    _path: Path

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Self]:
        """Make an empty ledger, which is removed afterwards."""
        with tempfile.NamedTemporaryFile(prefix="queuety-bench-") as file:
            fd = os.open(file.name, os.O_WRONLY | os.O_APPEND)
            try:
                yield cls(fd, Path(file.name))
            finally:
                os.close(fd)

    def lines(self) -> Iterator[tuple[int, int, str, int]]:
        """(job, process, "start" or "end", monotonic nanoseconds) of each line so far, in order."""
        for line in self._path.read_text("ascii").splitlines():
            job, pid, what, at = line.split()
            yield int(job), int(pid), what, int(at)

    def starts(self) -> list[int]:
        """When runs began, in order."""
        return sorted(at for _, _, what, at in self.lines() if what == "start")

    def runs(self, kills: Sequence[tuple[int, int]] = ()) -> list[Run]:
        """Every run, by its start. kills: (process, monotonic nanoseconds just before its SIGKILL)."""
        killed = dict(kills)
        found: list[Run] = []
        begun: dict[int, tuple[int, int]] = {}
        for job, pid, what, at in self.lines():
            if pid in begun and (what, job) != ("end", begun[pid][0]):
                raise BenchError(f"process {pid} noted the {what} of job {job} while it ran {begun[pid][0]}")
            if what == "start":
                begun[pid] = job, at
            else:
                found.append(Run(job, begun.pop(pid)[1], at))
        for pid, (job, at) in begun.items():
            if pid not in killed:
                raise BenchError(f"a run of job {job} has no end, and nobody has killed process {pid}")
            found.append(Run(job, at, max(at, killed[pid]), killed=True))
        return sorted(found, key=lambda run: run.began)


def most_at_once(runs: Sequence[Run]) -> int:
    """The most runs at any moment; an end and a start at the same nanosecond do not overlap."""
    return max((running for _, running in _levels(runs)), default=0)


def share_in_use(runs: Sequence[Run], places: int) -> float:
    """Share of the time from the first start to the last end, times the places, in which something ran."""
    span = max(run.ended for run in runs) - runs[0].began
    return sum(run.ended - run.began for run in runs) / (places * span) if span else 0.0


def longest_short(runs: Sequence[Run], places: int) -> float:
    """Milliseconds of the longest stretch between the first and the last start with less than `places` runs."""
    longest, since = 0, runs[0].began
    for at, running in _levels(runs):
        if at > runs[-1].began:
            break
        if running >= places:
            longest = max(longest, at - since if since else 0)
            since = 0
        elif not since:
            since = at
    return max(longest, runs[-1].began - since if since else 0) / 1e6


def gaps(runs: Sequence[Run]) -> list[float]:
    """Milliseconds from each end to the start that takes the place: of those free, the one free for longest.

    A start that finds no place freed before it takes one that has never been used.
    """
    found: list[float] = []
    ends = sorted(run.ended for run in runs)
    taken = 0
    for run in runs:
        if ends[taken] <= run.began:
            found.append((run.began - ends[taken]) / 1e6)
            taken += 1
    return found


def fullest_window(starts: Sequence[int], window_s: float) -> int:
    """The most starts in any window of that length, its end not counted."""
    most = first = 0
    for place, at in enumerate(starts):
        while at - starts[first] >= window_s * 1e9:
            first += 1
        most = max(most, place - first + 1)
    return most


def _levels(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """(moment, runs from then on) at each start and end."""
    running = 0
    for at, change in sorted([(run.began, 1) for run in runs] + [(run.ended, -1) for run in runs]):
        running += change
        yield at, running
