"""Weighted queue lists: which queues the next claim turns to, and how much it takes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

EVERY = 20  # one job in so many is set apart for those who would else wait for ever

Job = TypeVar("Job")
Line = tuple[tuple[str, ...], int]  # queues that are walked one after the other, and the most they may give


class Shares:
    """What one worker owes to each of its queues.

    Queues without a weight are strict: together they are one line, which goes first. The weighted ones share what it
    leaves, but at least one job in EVERY. Among them each job moves its queue's clock on by one over the queue's
    share, and the queue whose clock is behind comes next: stride scheduling. A queue that was found empty is idle; its
    clock keeps up with the others', so that it saves nothing.

    The worker's round: `plan` before a claim, `deal` what it brought, `ran` for what was really run; so what is given
    back is not charged, and what a claim takes too much or too little, the next ones make up for.

    Source: C. A. Waldspurger and W. E. Weihl, "Stride Scheduling", MIT/LCS/TM-528, 1995.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        """weights: of every queue, in the order of the list; 0: strict. At least one has a weight."""
        self._strict = tuple(queue for queue, weight in weights.items() if not weight)
        self._share = effective({queue: weight for queue, weight in weights.items() if weight})
        self._step = {queue: 1 / share for queue, share in self._share.items()}
        self._clock = dict.fromkeys(self._share, 0.0)
        self._busy: set[str] = (
            set()
        )  # weighted queues that had more than they were asked for, when last walked
        self._steady: set[str] = set()  # those that were so before the last claim and after it
        self._strict_busy = False
        self._strict_came = 0
        self._size = 0  # of the last claim
        self._owed = 0  # strict jobs run since the weighted ones had their one in EVERY
        self._lines: list[Line] = []

    def plan(self, size: int) -> list[Line]:
        """The lines of the next claim, of `size` jobs at most, in order.

        Each may give one job at least, so that a claim is empty only if all lines are. A line that gives less than
        was thought leaves the claim short, and the next one knows; were another to fill it up, what that one got
        too much would long stand between it and the rest.
        """
        set_apart = max(0, (self._owed + size) // EVERY)
        contended = self._strict_busy and set_apart
        strict = (self._strict, size if self._strict_busy else max(1, size - set_apart))
        # What strict queues do not take is shared, too: they will take about what they took the last time.
        room = set_apart if contended else max(1, size - self._strict_came)
        everybody = quotas(room, self._clock, self._share)
        busy = quotas(room, {one: at for one, at in self._clock.items() if one in self._busy}, self._share)
        first: list[Line] = []
        rest: list[Line] = []
        # Those that were empty come first, and get no more than if all had jobs: otherwise the busy ones, which
        # fill the claim, would never let us see that there is something again.
        for queue in sorted(self._clock, key=lambda one: (one in self._busy, self._clock[one])):
            cap = busy[queue] if queue in self._busy else max(1, everybody[queue])
            (first if cap else rest).append(((queue,), max(1, cap)))
        self._lines = [*first, strict, *rest] if contended else [strict, *first, *rest]
        return self._lines

    def deal(self, jobs: list[Job], queue_of: Callable[[Job], str], size: int) -> list[Job]:
        """Put what a claim of `size` brought into the order in which it is to run, and see who is idle.

        jobs: as a strict list would run them. Within a queue their order stays.
        """
        came = dict.fromkeys(self._share, 0)
        clock = dict(self._clock)
        strict: list[tuple[float, int, Job]] = []
        weighted: list[tuple[float, int, Job]] = []
        for number, job in enumerate(jobs):
            queue = queue_of(job)
            if queue in came:
                came[queue] += 1
                clock[queue] += self._step[queue]
                weighted.append((clock[queue], number, job))
            else:
                strict.append((len(strict) + 0.5, number, job))
        self._see(came, len(strict), size)
        weighted.sort()
        if strict:
            apart = EVERY - 1
            weighted = [
                (apart * rank - self._owed, number, job) for rank, (_, number, job) in enumerate(weighted, 1)
            ]
            weighted = sorted(strict + weighted)
        return [job for _, _, job in weighted]

    def _see(self, came: Mapping[str, int], strict: int, size: int) -> None:
        """Note which lines were walked to their end, and so are idle."""
        self._size = size
        left, idle, before = size, 0, set(self._busy)
        for queues, cap in self._lines:
            if left <= 0:
                break  # the claim was full: what comes after has not been walked
            count = strict if queues == self._strict else came[queues[0]]
            left -= count
            if queues == self._strict:
                self._strict_busy = count >= cap or left <= 0
                self._strict_came = 0 if self._strict_busy else count
            elif count >= cap or left <= 0:
                self._busy.add(queues[0])
            else:
                self._busy.discard(queues[0])
                idle += 1
        self._steady = before & self._busy
        if not self._strict_busy or idle == len(self._share):
            self._owed = 0  # one of the two has nothing to wait for

    def ran(self, queues: Iterable[str]) -> None:
        """Charge the jobs that were run, by queue."""
        for queue in queues:
            if queue in self._share:
                self._clock[queue] += self._step[queue]
                self._owed -= EVERY - 1
            else:
                self._owed += 1
        if not self._strict_busy:
            self._owed = 0
        # Who was empty has missed nothing, and who has just come back has no say in how late it is.
        now = min((self._clock[queue] for queue in self._steady), default=max(self._clock.values()))
        for queue, clock in self._clock.items():
            ahead = (clock if queue in self._steady else max(clock, now)) - now
            # Nobody waits for more than the claim was worth: the others may have gone short by their own doing.
            self._clock[queue] = min(ahead, max(self._step.values()) + 2 * self._size)


def effective(weights: Mapping[str, int]) -> dict[str, float]:
    """Each queue's share of the whole: by weight, but never below one in EVERY.

    With more than ten queues: never below half of an equal share.
    """
    floor = 1 / max(EVERY, 2 * len(weights))
    lifted: set[str] = set()
    while True:
        rest = sum(weight for queue, weight in weights.items() if queue not in lifted)
        free = 1 - floor * len(lifted)
        shares = {q: floor if q in lifted else free * weight / rest for q, weight in weights.items()}
        low = {queue for queue, share in shares.items() if share < floor - 1e-12}
        if not low:
            return shares
        lifted |= low


def quotas(size: int, clocks: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, int]:
    """Deal `size` jobs out to these queues, so that their clocks come to the same hour."""
    mass = moment = level = 0.0
    for queue in sorted(clocks, key=clocks.__getitem__):
        if mass and level <= clocks[queue]:
            break
        mass += shares[queue]
        moment += clocks[queue] * shares[queue]
        level = (size + moment) / mass
    given = {queue: max(0, int((level - clocks[queue]) * shares[queue] + 1e-9)) for queue in clocks}
    for _ in range(size - sum(given.values()) if clocks else 0):
        given[min(given, key=lambda one: clocks[one] + (given[one] + 1) / shares[one])] += 1
    return given
