"""The doctor: looks at everything that can be wrong with an installation, and says what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from queuety import __version__
from queuety.errors import DatabaseUnreachable, QueuetyError, SchemaMismatch
from queuety.features import pools
from queuety.features.why import span
from queuety.policy.admission import PRESSED
from queuety.store import capacity, claims, connect, queues, schedules, schema, standing
from queuety.store.standing import Process

MB = 1 << 20
LONG_S = 300.0  # a transaction that is open for longer is worth a word
LATE_S = 60.0  # due jobs that nobody serves are a failure after that
UNRECOVERED_S = 60.0  # a pool settles what ran out within a quarter of its stale timeout
FEW = 5  # connections


class Level(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found. name: for programs.  text: for people, with what to do.  figures: as values."""

    name: str
    level: Level
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def examine(url: Callable[[], str]) -> list[Check]:
    """Look at everything; a part that cannot be looked at is a failed check, and so is a database that is away."""
    try:
        conn = connect.connect(url(), name="queuety doctor")
    except QueuetyError as error:
        return [_failed("database", error)]
    with conn:
        checks = list(_base(conn))
        if any(check.level is Level.FAIL for check in checks):
            return checks  # the rest speaks of our own tables
        processes = standing.processes(conn)
        for look in (
            _server,
            _connections,
            _partitions,
            _leases,
            _workers,
            _queues,
            _parked,
            _memory,
            _schedules,
        ):
            try:
                checks += look(conn, processes)
            except connect.Trouble as error:
                checks.append(Check(look.__name__.strip("_"), Level.FAIL, str(connect.translate(error))))
        return checks


def _failed(name: str, error: QueuetyError) -> Check:
    return Check(name, Level.FAIL, f"{error.message}{f': {error.hint}' if error.hint else ''}")


# ── the database ──────────────────────────────────────────────────────────────────────────────────────


def _base(conn: connect.Connection) -> Iterator[Check]:
    try:
        schema.check_writable(conn)
        yield Check("database", Level.OK, "it answers, and takes writes")
    except DatabaseUnreachable as error:
        yield _failed("database", error)
    try:
        schema.check_schema(conn)
        yield Check("schema", Level.OK, f"revision {schema.EXPECTED}, as this version needs it")
    except SchemaMismatch as error:
        yield _failed("schema", error)
        return
    except QueuetyError as error:
        yield _failed("rights", error)
        return
    try:
        schema.check_rights(conn)
        yield Check("rights", Level.OK, "the role may do all that a worker does")
    except QueuetyError as error:
        yield _failed("rights", error)


_HURTS = {
    "fsync": "a crash of the server may destroy the database",
    "full_page_writes": "a crash of the server may destroy the database",
    "synchronous_commit": "a crash of the server forgets the last enqueues and settlements",
    "autovacuum": "the tables grow, and claims become slower and slower",
    "track_counts": "autovacuum does not work without it",
}


def _server(conn: connect.Connection, _: list[Process]) -> Iterator[Check]:
    found = standing.server(conn)
    for name in found.off:
        yield Check("server", Level.WARN, f"{name} is off: {_HURTS[name]}", {"setting": name})
    if found.unvacuumed:
        yield Check(
            "server", Level.WARN, "autovacuum is off for queuety.jobs: claims become slower and slower"
        )
    if not found.off and not found.unvacuumed:
        text = f"PostgreSQL {found.version}, database {found.database}, role {found.role}"
        yield Check("server", Level.OK, text, {"version": found.version})
    figures = {"oldest_s": found.oldest_s, "dead": found.dead, "live": found.live}
    if found.oldest_s > LONG_S:
        text = f"a transaction is open for {span(found.oldest_s)} ({found.oldest}): nothing that died since then can"
        yield Check("transactions", Level.WARN, f"{text} be vacuumed; end it", figures)
    elif not found.prepared:
        yield Check("transactions", Level.OK, f"the oldest is open for {span(found.oldest_s)}", figures)
    if found.prepared:
        text = (
            f"{found.prepared} prepared transactions are left open: COMMIT PREPARED or ROLLBACK PREPARED them"
        )
        yield Check("transactions", Level.WARN, text, {"prepared": found.prepared})


def _connections(conn: connect.Connection, _: list[Process]) -> Iterator[Check]:
    spare = capacity.spare(conn)
    if spare is None:
        yield Check("connections", Level.OK, "behind a pooler, whose limits cannot be seen")
        return
    level = Level.FAIL if spare <= 0 else Level.WARN if spare < FEW else Level.OK
    advice = "" if level is Level.OK else ": raise max_connections, or run fewer workers"
    yield Check("connections", level, f"the server has {spare} to spare{advice}", {"spare": spare})


def _partitions(conn: connect.Connection, _: list[Process]) -> Iterator[Check]:
    days, held = standing.partitions(conn)
    figures = {"days": days, "default": held}
    if held:
        text = (
            f"{', '.join(held)} hold rows that found no partition: a running pool moves them within the hour"
        )
        yield Check("partitions", Level.WARN, text, figures)
    if days < 2:
        text = "there is none for tomorrow: start a pool, or SELECT queuety.make_partitions(7)"
        yield Check("partitions", Level.WARN, text, figures)
    elif not held:
        yield Check("partitions", Level.OK, f"there are some for today and {days - 1} more days", figures)


def _leases(conn: connect.Connection, _: list[Process]) -> Iterator[Check]:
    count, longest = standing.stranded(conn)
    figures = {"jobs": count, "longest_s": longest}
    if longest > UNRECOVERED_S:
        text = f"{_jobs(count)} whose lease ran out up to {span(longest)} ago: no pool recovers them; start one, or"
        yield Check("leases", Level.FAIL, f"{text} run `queuety recover`", figures)
    elif count:
        yield Check("leases", Level.WARN, f"{_jobs(count)} whose lease has just run out", figures)
    else:
        yield Check("leases", Level.OK, "every job that runs is under a lease that holds", figures)


# ── the pools ─────────────────────────────────────────────────────────────────────────────────────────


def _workers(conn: connect.Connection, processes: list[Process]) -> Iterator[Check]:
    alive = [one for one in processes if one.alive and one.kind == "worker"]
    hosts = {one.host for one in alive}
    text = f"{len(alive)} alive on {len(hosts)} host{'' if len(hosts) == 1 else 's'}"
    yield Check(
        "workers",
        Level.OK if alive else Level.WARN,
        text if alive else "none is alive",
        {"alive": len(alive)},
    )
    silent = [one for one in processes if not one.alive]
    if silent:
        longest = max(one.silent_s for one in silent)
        names = ", ".join(sorted({f"{one.kind} {one.name} on {one.host}" for one in silent})[:5])
        show = "process shows" if len(silent) == 1 else "processes show"
        text = f"{len(silent)} {show} no sign of life, for up to {span(longest)}: {names}"
        yield Check("workers", Level.WARN, text, {"silent": len(silent), "longest_s": longest})
    versions = {one.version for one in processes if one.alive} | {__version__}
    if len(versions) > 1:
        text = f"different versions are at work: {', '.join(sorted(versions))}"
        yield Check("workers", Level.WARN, text, {"versions": sorted(versions)})


def _queues(conn: connect.Connection, processes: list[Process]) -> Iterator[Check]:
    well = True
    for row in queues.listing(conn):
        if row.paused or not (row.due or row.parked) or pools.serving(processes, "worker", [row.name]):
            continue
        well = False
        waited = row.oldest_due_s or 0.0
        found = f"{_jobs(row.due)} due, "
        if row.parked:
            waited = max(waited, standing.parked_for(conn, row.name))
            found = (found if row.due else "") + f"{_jobs(row.parked)} parked, "
        text = f"{row.name}: {found}the oldest for {span(waited)}, and no live worker"
        level = Level.FAIL if waited > LATE_S else Level.WARN
        figures = {"queue": row.name, "due": row.due, "parked": row.parked, "oldest_s": waited}
        yield Check("queues", level, f"{text} serves it: work --queue={row.name}", figures)
    if well:
        yield Check("queues", Level.OK, "every queue with due or parked jobs is served")


def _parked(conn: connect.Connection, processes: list[Process]) -> Iterator[Check]:
    well = True
    for prefix, tell in (("handler:", _on_handler), ("memory:", _on_memory), ("never:", _never)):
        for key in claims.waiting(conn, prefix):
            check = tell(conn, key, processes)
            if check is not None:
                well = False
                yield check
    if well:
        yield Check("parked", Level.OK, "no job waits for what no pool has")


def _on_handler(conn: connect.Connection, key: str, processes: list[Process]) -> Check | None:
    name = key.removeprefix("handler:")
    count, _, where = standing.parked(conn, key)
    if any(name in one.handlers for one in pools.serving(processes, "worker", where)):
        return None
    text = f"no live worker of {', '.join(where)} has the handler {name}; {_jobs(count)} parked: deploy it"
    return Check("parked", Level.WARN, text, {"parked_on": key, "jobs": count})


def _on_memory(conn: connect.Connection, key: str, processes: list[Process]) -> Check | None:
    name = key.removeprefix("memory:")
    count, oldest, where = standing.parked(conn, key)
    keepers = pools.serving(processes, "keeper", where)
    if not keepers:
        text = (
            f"{_jobs(count)} of {name} parked for want of memory, and no living pool works {', '.join(where)}"
        )
        return Check("parked", Level.WARN, text, {"parked_on": key, "jobs": count, "oldest_s": oldest})
    profile = pools.profile(conn, name, keepers)
    verdicts = pools.verdicts(profile, keepers)
    if profile is None or profile.peak is None or not verdicts or any(one.ever for one in verdicts):
        return None
    takes = f"{profile.peak / MB:.0f} MB"
    said = "; ".join(f"pool {one.pool}: {one.reason}" for one in verdicts)
    text = f"no living pool has room for {name}, which takes up to {takes} ({said}): {_jobs(count)} parked"
    figures = {"parked_on": key, "jobs": count, "oldest_s": oldest, "peak": profile.peak}
    return Check("parked", Level.FAIL, f"{text}; give one more memory", figures)


def _never(conn: connect.Connection, key: str, processes: list[Process]) -> Check | None:
    count, _, where = standing.parked(conn, key)
    kind, _, name = key.removeprefix("never:").partition(":")
    text = f"the whole budget of {kind} {name} is less than {_jobs(count)} in {', '.join(where)} cost each: raise it"
    return Check("parked", Level.FAIL, text, {"parked_on": key, "jobs": count})


def _memory(conn: connect.Connection, processes: list[Process]) -> Iterator[Check]:
    well = True
    for keeper in processes:
        told = keeper.memory if keeper.alive and keeper.kind == "keeper" else None
        if not told:
            continue
        where = f"pool {keeper.name} on {keeper.host}"
        if kills := int(told.get("kills") or 0):
            well = False
            text = (
                f"{where}: the kernel's memory killer has ended {kills} processes there since the pool began"
            )
            yield Check("memory", Level.WARN, text, {"pool": keeper.name, "kills": kills})
        full = float((told.get("pressure") or {}).get("full") or 0.0)
        if full >= PRESSED:
            well = False
            text = f"{where}: all stood still for want of memory {full:.0f} % of the last ten seconds"
            yield Check("memory", Level.WARN, text, {"pool": keeper.name, "pressure_full": full})
        available = told.get("available")
        if available is not None and available < int(told.get("system_headroom") or 0):
            well = False
            text = f"{where}: {available / MB:.0f} MB are left ({told.get('source')}), less than is to be kept free"
            yield Check("memory", Level.WARN, text, {"pool": keeper.name, "available": available})
    if well:
        yield Check("memory", Level.OK, "no pool has told of too little")


def _schedules(conn: connect.Connection, _: list[Process]) -> Iterator[Check]:
    found = schedules.standing(conn)
    figures = {"active": found.active, "broken": len(found.broken), "late_s": found.late_s}
    for key, reason in found.broken[:FEW]:
        text = f"{key} is broken: {reason}; replace it, or mend it and: queuety schedule resume {key}"
        yield Check("schedules", Level.FAIL, text, {"schedule": key, **figures})
    if len(found.broken) > FEW:
        yield Check("schedules", Level.FAIL, f"{len(found.broken)} are broken in all", figures)
    if found.late_s > LATE_S:
        text = f"a tick has been due for {span(found.late_s)} and nobody runs it: start a pool or `queuety scheduler`"
        yield Check("schedules", Level.FAIL, text, figures)
    elif found.active and not found.broken:
        count = f"{found.active} {'is' if found.active == 1 else 'are'} active"
        yield Check("schedules", Level.OK, f"{count}, and no tick is late", figures)


def _jobs(count: int) -> str:
    if count >= standing.MOST:
        return f"{standing.MOST} or more jobs"
    return f"{count} job{'' if count == 1 else 's'}"
