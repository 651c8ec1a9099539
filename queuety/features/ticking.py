"""Tick: what is due becomes jobs, each tick once over the fleet. Any number of processes may do it at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from queuety.errors import DuplicateJob, UsageError
from queuety.features.schedules import cadence_of, job_of
from queuety.model import Overlap, Schedule, Tick
from queuety.policy import ticks
from queuety.policy.ticks import Due, Skipped
from queuety.store import connect, enqueue, schedules
from queuety.store.connect import Connection
from queuety.store.schedules import Moved
from queuety.store.transactions import repeated

log = logging.getLogger("queuety.schedules")

BATCH = 100  # schedules in one transaction
FOLLOWED = 1000  # open ticks that are looked at in one go
REVISED = 500  # schedules whose next tick is reckoned anew in one go


@dataclass(frozen=True, slots=True)
class Fired:
    """What a round did. ticks: that ran, were skipped or failed.  more: others may be due."""

    ticks: list[Tick]
    more: bool


def fire(conn: Connection, *, behind_s: float = 0.0, limit: int = BATCH) -> Fired:
    """Write the jobs of the ticks that are due, note what is skipped, and move on: one transaction.

    behind_s: only of schedules that have been due for so long.
    """
    try:
        return _told(repeated(conn, lambda: _round(conn, behind_s, limit, apart=False)))
    except connect.Trouble as error:
        if connect.lost(error) or connect.again(error):
            raise
        log.debug("a tick cannot be written, each is tried apart: %s", error)
    return _told(repeated(conn, lambda: _round(conn, behind_s, limit, apart=True)))


def _told(fired: Fired) -> Fired:
    for tick in fired.ticks:
        if tick.kind == "fail":
            log.warning("schedule %s fails at %s: %s", tick.schedule, tick.at.isoformat(), tick.reason)
        else:
            log.debug(
                "schedule %s: %s %s %s", tick.schedule, tick.kind, tick.at.isoformat(), tick.reason or ""
            )
    return fired


def _round(conn: Connection, behind_s: float, limit: int, *, apart: bool) -> Fired:
    now, found = schedules.due(conn, limit, behind_s)
    if not found:
        return Fired([], more=False)
    busy = schedules.running(
        conn, {one.last_job for one in found if one.last_job and one.overlap is not Overlap.ALLOW}
    )
    plans = [(one, _due(one, now)) for one in found]
    noted = schedules.noted(conn, [(one.key, tick) for one, due in plans for tick in _wanted(one, due)])

    def act(one: Schedule, due: Due | str) -> tuple[list[Tick], Moved]:
        running = one.last_job if one.last_job in busy else None
        return _act(conn, one, due, now, noted, running, apart=apart)

    lines: list[Tick] = []
    if apart:
        for one, due in plans:
            lines += _alone(conn, one, lambda one=one, due=due: act(one, due))  # type: ignore[misc]
    else:
        done = [act(one, due) for one, due in plans]
        lines = [tick for ticked, _ in done for tick in ticked]
        schedules.note(conn, lines)
        schedules.move(conn, [moved for _, moved in done])
    return Fired(lines, more=len(found) >= limit)


def _wanted(one: Schedule, due: Due | str) -> list[datetime]:
    """The ticks that may run now."""
    return [*([one.buffered_at] if one.buffered_at else []), *(due.runs if isinstance(due, Due) else [])]


def _act(
    conn: Connection,
    one: Schedule,
    due: Due | str,
    now: datetime,
    noted: set[tuple[str, datetime]],
    running: int | None,
    *,
    apart: bool,
) -> tuple[list[Tick], Moved]:
    """Write the jobs of one schedule; returns what the journal is to say and what becomes of its row.

    noted: ticks that the journal has already.  running: the job of the tick before, if it has not ended.
    """
    if isinstance(due, str):
        return _break(one, now, due)
    fresh = [tick for tick in due.runs if (one.key, tick) not in noted]
    waiting = None if one.buffered_at is None or (one.key, one.buffered_at) in noted else one.buffered_at
    placed = ticks.place(fresh, one.overlap, running, waiting)
    ran = [_run(conn, one, tick, apart=apart) for tick in placed.runs]
    last = next(((tick.at, tick.job_id) for tick in reversed(ran) if tick.job_id), None)
    lines = [*_gaps(one, due.skipped), *ran, *_gaps(one, placed.skipped)]
    return lines, Moved(one.key, due.next, placed.buffered, last)


def _break(one: Schedule, now: datetime, why: str) -> tuple[list[Tick], Moved]:
    tick = Tick(one.key, one.next_at or now, "fail", f"schedule: {why}")
    return [tick], Moved(one.key, one.next_at, one.buffered_at, broken=why)


def _alone(conn: Connection, one: Schedule, act: Callable[[], tuple[list[Tick], Moved]]) -> list[Tick]:
    """Do one schedule's part so that it fails alone: one whose part the database refuses is broken."""
    try:
        with conn.transaction():
            return _keep(conn, *act())
    except connect.Trouble as error:
        if connect.lost(error) or connect.again(error):
            raise
        why = " ".join(str(error).split())[:500]
    with conn.transaction():
        return _keep(conn, *_break(one, schedules.now(conn), why))


def _keep(conn: Connection, lines: list[Tick], moved: Moved) -> list[Tick]:
    schedules.note(conn, lines)
    schedules.move(conn, [moved])
    return lines


def _due(one: Schedule, now: datetime) -> Due | str:
    """What is due of a schedule, or why nobody can tell."""
    try:
        rhythm = cadence_of(one, one.anchor)
        job_of(one, one.next_at or now)  # what it holds must make a job
        if one.next_at is None or one.next_at > now:  # only its buffered tick may run
            return Due([], [], one.next_at)
        return ticks.due(rhythm, one.next_at, now, one.missed, one.missed_limit)
    except UsageError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - whatever a row holds must not stop the others
        return f"{type(error).__name__}: {error}"[:500]


def _run(conn: Connection, one: Schedule, tick: datetime, *, apart: bool) -> Tick:
    """Write the job of a tick. apart: one that the database refuses fails alone."""
    try:
        if apart:
            with conn.transaction():
                job_id = enqueue.one(conn, job_of(one, tick))
        else:
            job_id = enqueue.one(conn, job_of(one, tick))
    except DuplicateJob as error:
        return Tick(one.key, tick, "skip", error.message)
    except Exception as error:
        if isinstance(error, connect.Trouble) and (not apart or connect.lost(error) or connect.again(error)):
            raise
        return Tick(one.key, tick, "fail", f"enqueue: {' '.join(str(error).split())[:500]}")
    if job_id is None:
        return Tick(one.key, tick, "skip", "another job has its unique key")
    return Tick(one.key, tick, "run", job_id=job_id)


def _gaps(one: Schedule, skipped: Iterable[Skipped]) -> list[Tick]:
    return [
        Tick(
            one.key,
            gap.first,
            "skip",
            gap.reason,
            through=gap.last if gap.last != gap.first else None,
            ticks=gap.ticks,
        )
        for gap in skipped
    ]


def follow(conn: Connection, after: int = 0) -> tuple[list[Tick], int]:
    """Note how the jobs of ticks have ended; each end is returned to one caller over the fleet.

    Looks at up to FOLLOWED ticks behind the job id `after`; returns the id to go on behind, 0 at the end.
    """
    return repeated(conn, lambda: schedules.follow(conn, after, FOLLOWED))


def revise(conn: Connection, after: str | None = None) -> str | None:
    """Reckon the next ticks anew, as clocks and zones may have changed; returns the key to go on behind.

    A tick that has been noted does not run again. What was broken and is not any more ticks again.
    """
    page, now = schedules.listing(conn, after=after, limit=REVISED), schedules.now(conn)
    for one in page:
        if _stale(one, now):
            repeated(conn, lambda key=one.key: _revise(conn, key))  # type: ignore[misc]
    return page[-1].key if len(page) == REVISED else None


def _stale(one: Schedule, now: datetime) -> bool:
    """Whether a schedule that should tick waits for too late a tick, or for none."""
    if one.paused_at is not None or one.retired_at is not None:
        return False
    try:
        first = cadence_of(one, one.anchor).next(now)
    except Exception:  # noqa: BLE001 - it is found when it is due
        return False
    if one.broken is not None:
        return True
    return first is not None and (one.next_at is None or one.next_at > first)


def _revise(conn: Connection, key: str) -> None:
    for one in schedules.lock(conn, [key]):
        now = schedules.now(conn)
        if _stale(one, now):
            schedules.move(conn, [Moved(key, cadence_of(one, one.anchor).next(now), one.buffered_at)])
