"""How many workers an adaptive pool wants: a pure function of what the last looks found.

Every look says how many workers were needed at that moment: one for each that is busy, and as many as it takes to
get through the backlog within the scale interval, or, with a target, before each of its jobs has waited for so long.
The pool grows to that at once. It shrinks to the most that any look within the idle grace has needed, so
a dip shorter than the grace changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

COUNTED = 10_000  # a backlog is counted no further; one that reaches it is more than anybody can tell
LATE = 0.01  # share of the jobs that may wait longer than the target once the pool has its size
LEAST_SMOOTH_S = 10.0
GROUPS = 100  # of waiting jobs, by when they came; beyond that the oldest are taken together
SURGE = 3.0  # times what came so far: more within one look is a burst


@dataclass(frozen=True, slots=True)
class Limits:
    """What an adaptive pool is held to.

    minimum, maximum: workers, 1 <= minimum <= maximum.  interval_s: between two looks.  grace_s: a worker leaves once
    it has not been needed for so long.  target_wait_s: how long jobs may wait; 0: no target.
    """

    minimum: int
    maximum: int
    interval_s: float = 1.0
    grace_s: float = 15.0
    target_wait_s: float = 0.0

    def clamp(self, size: int) -> int:
        return max(self.minimum, min(size, self.maximum))


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a pool found.

    elapsed_s: since the look before, seconds.
    size:      workers wanted until now; `alive` of them are processes already.
    busy:      workers that hold jobs; `held` jobs in all that have not ended.
    backlog:   jobs that are due and claimable, counted up to COUNTED.
    ended:     jobs that ended since the look before; they took `worked_s` seconds together.
    age_s:     for how long the jobs that run have run, on average.
    idle:      workers that have just looked in vain.
    start_s:   that a worker needs from its fork to its first claim.
    room:      workers that memory has room for, beyond the living; None: unknown.
    """

    elapsed_s: float
    size: int
    alive: int
    busy: int
    backlog: int
    held: int = 0
    ended: int = 0
    worked_s: float = 0.0
    age_s: float = 0.0
    start_s: float = 0.0
    idle: int = 0
    room: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What earlier looks have taught: moving means.

    worked_s, ended:   seconds that jobs took, and their number; both fade.
    rate:              jobs that become claimable per second.
    present:           jobs claimable or held at the last look; -1: none yet.
    waiting:           (seconds ago, jobs) that became claimable and still wait, oldest first.
    idle, backlog:     as the last look found them.
    needs:             (seconds ago, workers needed), oldest and largest first: those that a later look did not reach.
    """

    worked_s: float = 0.0
    ended: float = 0.0
    rate: float = 0.0
    present: int = -1
    waiting: tuple[tuple[float, int], ...] = ()
    idle: int = 0
    backlog: int = 0
    needs: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """size: workers wanted.  reason: why, for the log.  held: memory keeps it from being more."""

    size: int
    reason: str
    held: bool = False


def decide(limits: Limits, look: Look, history: History) -> tuple[Decision, History]:
    """Say how many workers are wanted now, within the limits and never fewer than are busy, and what was learned."""
    idle, backlog = look.idle, look.backlog
    if idle and history.idle:
        # What idle workers have left alone from look to look is not for us: locked, or left to others.
        look = replace(look, backlog=max(0, backlog - history.backlog))
    history = replace(_learn(limits, look, history), idle=idle, backlog=backlog)
    needed = need(limits, look, history)
    history = _remember(limits, look, history, needed)
    size = limits.clamp(look.size)
    reason = f"{_counted(look.backlog)} due, {look.busy} busy"
    if needed > size:
        allowed = needed if look.room is None else max(size, min(needed, look.alive + look.room))
        return Decision(allowed, reason, held=allowed < needed), history
    most = max(workers for _, workers in history.needs)
    if most < size:
        return Decision(most, f"{reason}, no more needed for {limits.grace_s:g} s"), history
    return Decision(size, reason), history


def need(limits: Limits, look: Look, history: History) -> int:
    """Workers that this look alone calls for, within the limits."""
    if look.backlog >= COUNTED:
        return limits.maximum
    each_s = service_s(look, history)
    needed, jobs = look.busy, look.busy
    for ago_s, count in history.waiting if limits.target_wait_s else ((0.0, look.backlog),):
        jobs += count
        # A job longer than what is left needs a worker to itself; of quick ones a worker gets through many.
        share = min(each_s / _left_s(limits, ago_s + look.start_s), 1.0)
        needed = max(needed, math.ceil(jobs * share - 1e-9))
    if limits.target_wait_s and history.ended:
        mean_s = history.worked_s / history.ended
        load = max(history.rate, 0.0) * mean_s
        if mean_s > 0:
            needed = max(needed, staffing(load, limits.target_wait_s / mean_s, limits.maximum))
    return limits.clamp(needed)


def _left_s(limits: Limits, gone_s: float) -> float:
    """Seconds in which jobs that have waited for `gone_s` should begin: what is late, within one interval."""
    target_s = limits.target_wait_s
    return max(target_s - gone_s, min(limits.interval_s, target_s / 2)) if target_s else limits.interval_s


def service_s(look: Look, history: History) -> float:
    """Seconds that a job takes a worker: a moving mean, but no less than those have lasted that run; inf: unknown.

    For long jobs may come after many quick ones, and the mean learns of them only when they end.
    """
    return max(history.worked_s / history.ended if history.ended else math.inf, look.age_s)


def staffing(load: float, patience: float, most: int) -> int:
    """Fewest workers, up to `most`, with which at most LATE of the jobs wait longer than `patience` mean services.

    load: work that arrives, in workers that it keeps busy.
    Source: A. K. Erlang, 1917 (the delay formula, from the loss formula's recurrence).
    """
    if load <= 0:
        return 0
    lost = 1.0
    for workers in range(1, most):
        lost = load * lost / (workers + load * lost)
        if workers > load:
            delayed = lost / (1 - load / workers * (1 - lost))
            if delayed * math.exp(-(workers - load) * patience) <= LATE:
                return workers
    return most


def room(free: int | None, cost: int, headroom: int, starting: int) -> int | None:
    """Workers that memory has room for; None if it is not known what is free.

    free, cost, headroom: bytes: what may still be taken, what a worker takes, what is to be left.
    starting: workers that live already but have not yet taken theirs.
    """
    if free is None:
        return None
    return max(0, (free - headroom) // max(cost, 1) - starting)


def _learn(limits: Limits, look: Look, history: History) -> History:
    """Take a look's jobs and seconds into the moving means."""
    # No quicker than the pool may shrink: a mean that is noisier than that would only ratchet the size up.
    smooth_s = max(LEAST_SMOOTH_S, 5 * limits.interval_s, limits.target_wait_s, limits.grace_s)
    fade = math.exp(-look.elapsed_s / smooth_s)
    worked_s, ended = history.worked_s, history.ended
    if look.ended:  # what is known of jobs is not forgotten while there are none
        worked_s, ended = worked_s * fade + look.worked_s, ended * fade + look.ended
    present = look.backlog + look.held
    arrived = look.ended + present - history.present if history.present >= 0 else look.backlog
    rate = history.rate
    if history.present >= 0 and look.elapsed_s > 0:
        # A burst is the backlog's affair and says nothing of what will come; nor does a purge.
        most = SURGE * max(rate * look.elapsed_s, 1.0)
        likely = max(-most, min(arrived, most))
        rate = rate * fade + (1 - fade) * likely / look.elapsed_s
    waiting = _wait(look, history, arrived) if limits.target_wait_s else ()
    return replace(history, worked_s=worked_s, ended=ended, rate=rate, present=present, waiting=waiting)


def _wait(look: Look, history: History, arrived: int) -> tuple[tuple[float, int], ...]:
    """Let what waited wait on, and what has come since the last look wait since then; the oldest have begun."""
    groups = [(ago_s + look.elapsed_s, jobs) for ago_s, jobs in history.waiting]
    # Whatever the counts do not explain (unparked, resumed) has just come.
    known = sum(jobs for _, jobs in groups)
    groups.append((look.elapsed_s, max(arrived, look.backlog - known, 0)))
    begun = sum(jobs for _, jobs in groups) - look.backlog
    kept: list[tuple[float, int]] = []
    for ago_s, jobs in groups:
        gone = min(max(begun, 0), jobs)
        begun -= gone
        if jobs > gone:
            kept.append((ago_s, jobs - gone))
    if len(kept) > GROUPS:
        kept[:2] = [(kept[0][0], kept[0][1] + kept[1][1])]
    return tuple(kept)


def _remember(limits: Limits, look: Look, history: History, needed: int) -> History:
    """Note what was needed, and forget what is older than the grace or was less than now."""
    passed_s = min(look.elapsed_s, 2 * limits.interval_s)  # what nobody has seen was not quiet
    older = history.needs or ((0.0, limits.clamp(look.size)),)
    kept = [
        (ago_s + passed_s, workers)
        for ago_s, workers in older
        if workers > needed and ago_s + passed_s < limits.grace_s
    ]
    return replace(history, needs=(*kept, (0.0, needed)))


def _counted(backlog: int) -> str:
    return f"{backlog}" if backlog < COUNTED else f"{COUNTED} or more"
