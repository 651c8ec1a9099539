"""Schedules: write, change and look at them. When they tick: features.ticking."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from queuety.errors import ScheduleExists, UsageError, WrongState
from queuety.model import NewJob, NewSchedule, Overlap, Schedule, Tick
from queuety.names import quoted
from queuety.policy import ticks
from queuety.policy.cadence import Cadence, cadence
from queuety.store import enqueue, schedules
from queuety.store.connect import Connection
from queuety.store.transactions import repeated
from queuety.texts import clean

MAX_REASON = 500
BY_HAND = "by hand"

find, listing = schedules.find, schedules.listing


@dataclass(frozen=True, slots=True)
class Planned:
    """A tick to come. due: when its job falls due, jitter included."""

    at: datetime
    due: datetime


@dataclass(slots=True)
class Synced:
    """What a synchronisation did, by key. taken: declared by another application until now."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)


def cadence_of(one: Schedule | NewSchedule, anchor: datetime) -> Cadence:
    """When a schedule ticks. anchor: what an interval counts from. Raises UsageError."""
    return cadence(
        cron=one.cron,
        every_s=one.every_s,
        timezone=one.timezone,
        anchor=one.starts_at or anchor,
        starts_at=one.starts_at,
        ends_at=one.ends_at,
    )


def upcoming(one: Schedule | NewSchedule, after: datetime, count: int) -> list[Planned]:
    """The next `count` ticks behind `after`, by the same computation that runs them."""
    rhythm = cadence_of(one, one.anchor if isinstance(one, Schedule) else after)
    found: list[Planned] = []
    while len(found) < count and (tick := rhythm.next(after)) is not None:
        found.append(Planned(tick, tick + timedelta(seconds=ticks.jitter(one.key, tick, one.jitter_s))))
        after = tick
    return found


def add(
    conn: Connection, new: NewSchedule, *, replace: bool = False, declared_by: str | None = None
) -> Schedule:
    """Write a schedule, or with `replace` give the one that has its key another content.

    Raises ScheduleExists; UsageError if it never ticks.
    """

    def work() -> None:
        now = schedules.now(conn)
        if schedules.insert(conn, new, now, _first(new, now), declared_by):
            return
        if not replace:
            raise ScheduleExists(
                f"there is a schedule {quoted(new.key)} already", "choose another key, or replace it"
            )
        _replace(conn, schedules.lock_one(conn, new.key), new, now, declared_by)

    repeated(conn, work)
    schedules.tell(conn)
    return schedules.find(conn, new.key)


def _first(new: NewSchedule, now: datetime) -> datetime:
    tick = cadence_of(new, now).next(now)
    if tick is None:
        raise UsageError(
            f"the schedule {quoted(new.key)} never ticks: nothing comes before its end", "give a later end"
        )
    return tick


def _replace(
    conn: Connection, old: Schedule, new: NewSchedule, now: datetime, declared_by: str | None
) -> None:
    """Give a locked schedule another content; where its rhythm stays, so do its next tick and what it counts from."""
    if _rhythm(old) == _rhythm(new) and old.retired_at is None and old.broken is None:
        schedules.update(conn, new, old.anchor, old.next_at, declared_by)
    else:
        schedules.update(conn, new, now, _first(new, now), declared_by)


def _rhythm(one: Schedule | NewSchedule) -> tuple[object, ...]:
    return one.cron, one.every_s, one.timezone, one.starts_at, one.ends_at


def sync(conn: Connection, declared: Sequence[NewSchedule], declared_by: str) -> Synced:
    """Make the stored schedules of an application those that its code declares; what it declares no more is retired.

    A pause stays. One that was made by command, or that another application declared, is taken over.
    """
    wanted = {one.key: one for one in declared}

    def work() -> Synced:
        done = Synced()
        now = schedules.now(conn)
        keys = {one.key for one in schedules.declared(conn, declared_by)} | wanted.keys()
        stored = {one.key: one for one in schedules.lock(conn, sorted(keys))}
        for key, new in sorted(wanted.items()):
            old = stored.get(key)
            if old is None:
                schedules.insert(conn, new, now, _first_or_none(new, now), declared_by)
                done.added.append(key)
            elif old.declared_by == declared_by and old.retired_at is None and _same(old, new):
                done.unchanged.append(key)
            else:
                _replace_or_end(conn, old, new, now, declared_by)
                done.changed.append(key)
                if old.declared_by not in (None, declared_by) and old.retired_at is None:
                    done.taken.append(key)
        gone = [key for key, one in stored.items() if key not in wanted and one.retired_at is None]
        schedules.retire(conn, gone)
        done.retired.extend(sorted(gone))
        return done

    done = repeated(conn, work)
    if done.added or done.changed:
        schedules.tell(conn)
    return done


def _first_or_none(new: NewSchedule, now: datetime) -> datetime | None:
    """As _first; one that is over is kept as such: code that declares it still must start."""
    return cadence_of(new, now).next(now)


def _replace_or_end(
    conn: Connection, old: Schedule, new: NewSchedule, now: datetime, declared_by: str
) -> None:
    if cadence_of(new, now).next(now) is None:
        schedules.update(conn, new, now, None, declared_by)
    else:
        _replace(conn, old, new, now, declared_by)


def _same(old: Schedule, new: NewSchedule) -> bool:
    """Whether the stored one says what the code says."""
    return (
        _rhythm(old) == _rhythm(new)
        and (old.handler, old.jitter_s, old.overlap, old.missed, old.missed_limit)
        == (new.job.handler, new.jitter_s, new.overlap, new.missed, new.missed_limit)
        and old.payload == json.loads(new.job.payload)
        and old.job == json.loads(new.job.settings_json())
        and old.broken is None
    )


def remove(conn: Connection, key: str) -> Schedule:
    """Delete a schedule; its journal stays until it is pruned, and its jobs live on. Raises ScheduleNotFound."""

    def work() -> Schedule:
        found = schedules.lock_one(conn, key)
        schedules.delete(conn, found.key)
        return found

    return repeated(conn, work)


def pause(conn: Connection, key: str, reason: str = "") -> Schedule:
    """Pause a schedule: once this returns it runs no tick. Jobs that it has written are not touched."""
    if not isinstance(reason, str):
        raise UsageError(f"the reason is a text, not {type(reason).__name__}", "give a str")

    def work() -> None:
        found = schedules.lock_one(conn, key)
        schedules.pause(conn, found.key, clean(reason.strip(), MAX_REASON) or None)

    repeated(conn, work)
    return schedules.find(conn, key)


def resume(conn: Connection, key: str) -> bool:
    """Let a paused or broken schedule tick again, from now on; False if it was neither.

    The ticks that passed meanwhile are noted as skipped. Raises UsageError if it is still broken.
    """

    def work() -> bool:
        found = schedules.lock_one(conn, key)
        if found.paused_at is None and found.broken is None:
            return False
        now = schedules.now(conn)
        rhythm = cadence_of(found, found.anchor)
        if found.next_at is not None and found.paused_at is not None:
            since = max(found.next_at, found.paused_at) - timedelta(microseconds=1)
            first, last = rhythm.next(since), rhythm.latest(since, now, 1)
            if first is not None and last:
                count = rhythm.count(since, now, ticks.MOST_COUNTED)
                gap = Tick(found.key, first, "skip", _paused(found), through=last[0], ticks=count)
                schedules.note(conn, [gap])
        schedules.resume(conn, found.key, rhythm.next(now))
        return True

    resumed = repeated(conn, work)
    if resumed:
        schedules.tell(conn)
    return resumed


def _paused(one: Schedule) -> str:
    return f"paused: {one.pause_reason}" if one.pause_reason else "paused"


def run(conn: Connection, key: str) -> int:
    """Write a job of a schedule now, outside its rhythm; returns its id.

    Raises WrongState if overlap forbids it while the job of the tick before has not ended.
    """

    def work() -> int:
        found = schedules.lock_one(conn, key)
        if found.retired_at is not None:
            raise WrongState(
                f"the schedule {quoted(found.key)} is retired: {found.declared_by} declares it no more",
                "declare it again, or enqueue the job itself",
            )
        if found.overlap is not Overlap.ALLOW and found.last_job in schedules.running(
            conn, [found.last_job or 0]
        ):
            raise WrongState(
                f"job {found.last_job} of the schedule {quoted(found.key)} has not ended, and its overlap is "
                f'"{found.overlap}"',
                f"wait for it, or: queuety cancel {found.last_job}",
            )
        now = schedules.now(conn)
        job = job_of(found)
        job_id = enqueue.one(conn, job)
        if job_id is None:
            raise WrongState(
                f"another job has the unique key of the schedule {quoted(found.key)}", "wait for its end"
            )
        schedules.note(conn, [Tick(found.key, now, "run", BY_HAND, job_id)])
        schedules.ran_by_hand(conn, found.key, now, job_id)
        return job_id

    return repeated(conn, work)


def job_of(one: Schedule, tick: datetime | None = None) -> NewJob:
    """The job that a tick writes. tick: None: due now.

    One that must be unique is left out if another has its key, instead of standing for that one.
    """
    payload = json.dumps(one.payload, ensure_ascii=False)
    job = NewJob.from_settings(one.handler, payload, one.job)
    due = None
    if tick is not None and one.jitter_s:
        due = tick.astimezone(UTC) + timedelta(seconds=ticks.jitter(one.key, tick, one.jitter_s))
    answer = "skip" if job.on_duplicate in ("return", "error") else job.on_duplicate
    return replace(job, at=due, on_duplicate=answer)


def history(conn: Connection, key: str, *, kind: str | None = None, limit: int = 100) -> list[Tick]:
    """The journal of a schedule, the latest first; of a removed one too, until it is pruned.

    Raises ScheduleNotFound if there is neither.
    """
    found = schedules.history(conn, key, kind=kind, limit=limit)
    if not found:
        schedules.find(conn, key)
    return found
