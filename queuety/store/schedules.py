"""Schedules and the journal of their ticks, as rows. When they tick is not decided here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queuety.errors import ScheduleNotFound
from queuety.model import Missed, NewSchedule, Overlap, Schedule, Tick
from queuety.names import check_name, quoted
from queuety.store import reader
from queuety.store.connect import Connection
from queuety.store.statements import statement

SCHEDULER_SEEN_S = 15.0  # a scheduler that has shown life so lately is counted on

_COLUMNS = """
    s.key, s.handler, s.payload, s.job, s.cron, s.every_s, s.timezone, s.starts_at, s.ends_at, s.jitter_s,
    s.overlap, s.missed, s.missed_limit, s.declared_by, s.anchor, s.next_at, s.buffered_at, s.last_at, s.last_job,
    s.paused_at, s.pause_reason, s.retired_at, s.broken, s.created_at, s.changed_at
"""
_TICKS = """
    t.schedule, t.at, t.kind, t.reason, t.job_id, t.through, t.ticks, t.ended, t.error, t.noted_at, t.ended_at
"""


@dataclass(frozen=True, slots=True)
class Next:
    """When to look again. in_s: seconds until the next tick, 0 or less: one is due; None: none is to come.

    free: a buffered tick may run, since the job that it waited for has ended.
    elsewhere: a process of its own schedules for the fleet.  any: there are schedules.
    """

    in_s: float | None
    free: bool
    elsewhere: bool
    any: bool


def find(conn: Connection, key: str) -> Schedule:
    """The schedule with this key. Raises ScheduleNotFound."""
    name = check_name("schedule", key)
    found = reader.rows(
        conn, f"SELECT {_COLUMNS} FROM queuety.schedules AS s WHERE s.key = %(key)s", {"key": name}
    )
    if not found:
        raise _unknown(conn, name)
    return _schedule(found[0])


def listing(
    conn: Connection,
    *,
    handler: str | None = None,
    after: str | None = None,
    limit: int = 1000,
) -> list[Schedule]:
    """Schedules by key. after: the last key of the page before."""
    rows = reader.rows(
        conn,
        f"""
        SELECT {_COLUMNS}
        FROM queuety.schedules AS s
        WHERE (%(handler)s::text IS NULL OR s.handler = %(handler)s)
            AND (%(after)s::text IS NULL OR s.key > %(after)s)
        ORDER BY s.key
        LIMIT %(limit)s
        """,
        {"handler": handler, "after": after, "limit": limit},
    )
    return [_schedule(row) for row in rows]


def counts(conn: Connection) -> dict[str, int]:
    """How many schedules are in which state, of those there are; as `Schedule.state` says."""
    rows = reader.rows(
        conn,
        """
        SELECT
            CASE
                WHEN s.retired_at IS NOT NULL THEN 'retired'
                WHEN s.broken IS NOT NULL THEN 'broken'
                WHEN s.paused_at IS NOT NULL THEN 'paused'
                WHEN s.next_at IS NULL AND s.buffered_at IS NULL THEN 'over'
                ELSE 'active'
            END AS state,
            count(*)
        FROM queuety.schedules AS s
        GROUP BY state
        ORDER BY state
        """,
    )
    return {state: int(number) for state, number in rows}


def declared(conn: Connection, declared_by: str) -> list[Schedule]:
    """Lock the schedules that an application declares, retired ones too, by key."""
    return _locked(conn, "s.declared_by = %(by)s", {"by": declared_by})


def declares(conn: Connection, declared_by: str) -> bool:
    """Whether the application declares any that is not retired."""
    return bool(
        reader.rows(
            conn,
            "SELECT EXISTS (SELECT FROM queuety.schedules AS s WHERE s.declared_by = %(by)s AND s.retired_at IS NULL)",
            {"by": declared_by},
        )[0][0]
    )


def lock(conn: Connection, keys: Sequence[str]) -> list[Schedule]:
    """Lock schedules, in the order of their keys: nobody fires, changes or removes them until the commit."""
    return _locked(conn, "s.key = ANY (%(keys)s::text[])", {"keys": list(keys)})


def lock_one(conn: Connection, key: str) -> Schedule:
    """Lock a schedule. Raises ScheduleNotFound."""
    name = check_name("schedule", key)
    found = lock(conn, [name])
    if not found:
        raise _unknown(conn, name)
    return found[0]


def _locked(conn: Connection, condition: str, values: dict[str, Any]) -> list[Schedule]:
    rows = reader.rows(
        conn,
        f"SELECT {_COLUMNS} FROM queuety.schedules AS s WHERE {condition} ORDER BY s.key FOR UPDATE",
        values,
    )
    return [_schedule(row) for row in rows]


def now(conn: Connection) -> datetime:
    """The database's time."""
    found: datetime = reader.rows(conn, "SELECT statement_timestamp()")[0][0]
    return found


def insert(
    conn: Connection, new: NewSchedule, anchor: datetime, next_at: datetime | None, declared_by: str | None
) -> bool:
    """Write a schedule; False if its key is taken."""
    values = _values(new) | {"anchor": anchor, "next_at": next_at, "declared_by": declared_by}
    return bool(conn.execute(statement("insert_schedule"), values).rowcount)


def update(
    conn: Connection, new: NewSchedule, anchor: datetime, next_at: datetime | None, declared_by: str | None
) -> None:
    """Give a locked schedule another content. It is not retired and not broken any more; a pause stays."""
    values = _values(new) | {"anchor": anchor, "next_at": next_at, "declared_by": declared_by}
    conn.execute(statement("update_schedule"), values)


def _values(new: NewSchedule) -> dict[str, Any]:
    return {
        "key": new.key,
        "handler": new.job.handler,
        "payload": new.job.payload,
        "job": new.job.settings_json(),
        "cron": new.cron,
        "every_s": new.every_s,
        "timezone": new.timezone,
        "starts_at": new.starts_at,
        "ends_at": new.ends_at,
        "jitter_s": new.jitter_s,
        "overlap": str(new.overlap),
        "missed": str(new.missed),
        "missed_limit": new.missed_limit,
    }


def delete(conn: Connection, key: str) -> None:
    conn.execute("DELETE FROM queuety.schedules AS s WHERE s.key = %s", [key])


def pause(conn: Connection, key: str, reason: str | None) -> None:
    """Pause a locked schedule, or give the pause another reason."""
    conn.execute(
        """
        UPDATE queuety.schedules AS s
        SET paused_at = coalesce(s.paused_at, statement_timestamp()), pause_reason = %s
        WHERE s.key = %s
        """,
        [reason, key],
    )


def resume(conn: Connection, key: str, next_at: datetime | None) -> None:
    """Let a locked schedule tick from `next_at` on."""
    conn.execute(
        """
        UPDATE queuety.schedules AS s
        SET paused_at = NULL, pause_reason = NULL, broken = NULL, next_at = %s
        WHERE s.key = %s
        """,
        [next_at, key],
    )


def retire(conn: Connection, keys: Sequence[str]) -> None:
    """Let locked schedules tick no more."""
    conn.execute(
        """
        UPDATE queuety.schedules AS s
        SET retired_at = statement_timestamp(), buffered_at = NULL
        WHERE s.key = ANY (%s::text[]) AND s.retired_at IS NULL
        """,
        [list(keys)],
    )


def next_due(conn: Connection) -> Next:
    """Look when the next tick is due, on two small indexes."""
    row = conn.execute(statement("next_due"), {"seen": SCHEDULER_SEEN_S}).fetchone()
    assert row is not None
    return Next(row[0], *map(bool, row[1:]))


def due(conn: Connection, limit: int, behind_s: float) -> tuple[datetime, list[Schedule]]:
    """Lock schedules of which a tick is due for `behind_s`, or whose buffered one may run; with the time of it.

    The longest due first. Those that are locked are skipped: somebody else is at them.
    """
    rows = reader.rows(conn, statement("due_schedules"), {"limit": limit, "behind": behind_s})
    found = [_schedule(row[2:]) for row in rows]
    # Those without a next tick wait with a buffered one.
    found.sort(key=lambda one: (one.next_at is None, one.next_at or one.anchor, one.key))
    return (rows[0][0] if rows else now(conn)), found


def running(conn: Connection, jobs: Iterable[int]) -> set[int]:
    """Of these jobs, the ones that have not ended. After the lock: one statement sees one snapshot."""
    ids = list(jobs)
    if not ids:
        return set()
    rows = conn.execute("SELECT j.id FROM queuety.jobs AS j WHERE j.id = ANY (%s::bigint[])", [ids])
    return {row[0] for row in rows}


def noted(conn: Connection, ticks: Sequence[tuple[str, datetime]]) -> set[tuple[str, datetime]]:
    """Of these ticks, the ones that the journal has already."""
    if not ticks:
        return set()
    rows = reader.rows(
        conn,
        """
        SELECT t.schedule, t.at
        FROM unnest(%(keys)s::text[], %(ats)s::timestamptz[]) AS asked (schedule, at)
        INNER JOIN queuety.schedule_ticks AS t ON t.schedule = asked.schedule AND t.at = asked.at
        """,
        {"keys": [key for key, _ in ticks], "ats": [at for _, at in ticks]},
    )
    return {(key, at) for key, at in rows}


def note(conn: Connection, ticks: Sequence[Tick]) -> None:
    """Add to the journal. A skip of a tick that is there already changes nothing; a second run is an error."""
    if ticks:
        rows = [
            {
                "schedule": tick.schedule,
                "at": tick.at.isoformat(),
                "through": tick.through.isoformat() if tick.through else None,
                "ticks": tick.ticks,
                "kind": tick.kind,
                "reason": tick.reason,
                "job_id": tick.job_id,
            }
            for tick in ticks
        ]
        conn.execute(statement("note_ticks"), {"ticks": json.dumps(rows)})


@dataclass(frozen=True, slots=True)
class Moved:
    """What a round leaves of a schedule. last: tick that ran last and its job; None: none did."""

    key: str
    next_at: datetime | None
    buffered_at: datetime | None = None
    last: tuple[datetime, int] | None = None
    broken: str | None = None


def move(conn: Connection, moved: Sequence[Moved]) -> None:
    """Move locked schedules on."""
    if moved:
        rows = [
            {
                "key": one.key,
                "next_at": one.next_at.isoformat() if one.next_at else None,
                "buffered_at": one.buffered_at.isoformat() if one.buffered_at else None,
                "last_at": one.last[0].isoformat() if one.last else None,
                "last_job": one.last[1] if one.last else None,
                "broken": one.broken,
            }
            for one in moved
        ]
        conn.execute(statement("move_schedules"), {"schedules": json.dumps(rows)})


def ran_by_hand(conn: Connection, key: str, at: datetime, job_id: int) -> None:
    """Note on a locked schedule that a job of it was written outside its rhythm."""
    conn.execute(
        "UPDATE queuety.schedules AS s SET last_at = %s, last_job = %s WHERE s.key = %s", [at, job_id, key]
    )


def follow(conn: Connection, after: int, limit: int) -> tuple[list[Tick], int]:
    """Note how the jobs of ticks have ended; returns those ticks, and the job id to go on behind, 0 at the end."""
    rows = reader.rows(conn, statement("follow_ticks"), {"after": after, "limit": limit})
    ticks = [_tick(row[1:]) for row in rows if row[1] is not None]
    return ticks, (rows[0][0] or 0) if rows else 0


def history(conn: Connection, key: str, *, kind: str | None = None, limit: int = 100) -> list[Tick]:
    """The journal of a schedule, the latest first. kind: run, skip or fail."""
    rows = reader.rows(
        conn,
        f"""
        SELECT {_TICKS}
        FROM queuety.schedule_ticks AS t
        WHERE t.schedule = %(key)s AND (%(kind)s::text IS NULL OR t.kind = %(kind)s)
        ORDER BY t.at DESC
        LIMIT %(limit)s
        """,
        {"key": check_name("schedule", key), "kind": kind, "limit": limit},
    )
    return [_tick(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the schedules stand. late_s: seconds for which the longest due tick has been due.  broken: key and why."""

    active: int
    late_s: float
    broken: list[tuple[str, str]]
    next_at: datetime | None


def standing(conn: Connection) -> Standing:
    """Look how the schedules stand, for people."""
    row = conn.execute(
        """
        SELECT
            count(*) FILTER (WHERE s.broken IS NULL),
            coalesce(
                extract(EPOCH FROM statement_timestamp() - min(s.next_at) FILTER (WHERE s.broken IS NULL))::float8, 0
            ),
            array_agg(s.key ORDER BY s.key) FILTER (WHERE s.broken IS NOT NULL),
            array_agg(s.broken ORDER BY s.key) FILTER (WHERE s.broken IS NOT NULL),
            min(s.next_at) FILTER (WHERE s.broken IS NULL)
        FROM queuety.schedules AS s
        WHERE s.paused_at IS NULL AND s.retired_at IS NULL
        """
    ).fetchone()
    assert row is not None
    broken = list(zip(row[2] or [], row[3] or [], strict=True))
    return Standing(row[0], max(0.0, row[1]), broken, row[4])


def prune(conn: Connection, days: int, limit: int = 5000) -> int:
    """Forget ticks noted more than so many days ago, at most `limit`; 0 days: keep. Index: schedule_ticks_noted."""
    if not days:
        return 0
    return int(conn.execute(statement("prune_ticks"), {"days": days, "limit": limit}).rowcount)


def tell(conn: Connection) -> None:
    """Tell keepers and schedulers that a schedule has become another: they look at once when it is due."""
    conn.execute("SELECT pg_notify('queuety', 's:')")


def _schedule(row: Sequence[Any]) -> Schedule:
    values = list(row)
    values[10], values[11] = Overlap(values[10]), Missed(values[11])
    return Schedule(*values)


def _tick(row: Sequence[Any]) -> Tick:
    return Tick(*row)


def _unknown(conn: Connection, key: str) -> ScheduleNotFound:
    import difflib

    keys = [row[0] for row in conn.execute("SELECT s.key FROM queuety.schedules AS s LIMIT 1000")]
    near = difflib.get_close_matches(key, keys, 1)
    hint = f"did you mean {quoted(near[0])}?" if near else "`queuety schedule list` shows all"
    return ScheduleNotFound(f"there is no schedule {quoted(key)}", hint)
