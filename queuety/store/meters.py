"""Meters: the limits that are set in the database, and what runs and waits under each limited key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from queuety.errors import MeterNotFound, UsageError
from queuety.names import check_name, check_queue, quoted
from queuety.store import notices, reader
from queuety.store.claims import NO_BUDGETS, Budgets
from queuety.store.connect import Connection
from queuety.store.queues import wait_for_claims
from queuety.store.statements import statement
from queuety.store.transactions import repeated

KINDS = ("group", "queue", "rate")
MOST_KEYS = 1000
BATCH = 1000

_SET = """
    INSERT INTO queuety.meters AS m (kind, name, concurrency, budget, rate_count, rate_s)
    VALUES (%(kind)s, %(name)s, %(concurrency)s, %(budget)s, %(rate_count)s, %(rate_s)s)
    ON CONFLICT (kind, name) DO UPDATE
    SET concurrency = coalesce(excluded.concurrency, m.concurrency),
        budget = coalesce(excluded.budget, m.budget),
        rate_count = coalesce(excluded.rate_count, m.rate_count),
        rate_s = coalesce(excluded.rate_s, m.rate_s),
        set_at = statement_timestamp()
"""
# Runs that were claimed before the budget was there count against it from now on.
_COUNT_RUNNING = """
    UPDATE queuety.jobs AS j
    SET metered = true
    WHERE j.lease_until IS NOT NULL AND j.queue = %(name)s AND j.metered IS NULL
"""


@dataclass(frozen=True, slots=True)
class Meter:
    """A limited key as it stands.

    key: group:NAME, queue:NAME or rate:NAME.  queues: those whose jobs run under it or wait for it.
    concurrency, budget, rate_count, rate_s: its limits, None where it has none of that kind.  stored: whether one of
    them was set in the database; else they are what its jobs and the settings say.
    running: runs at a time that count, one for each worker.  cost: units that they take.
    started: starts within the window of a rate.
    parked: jobs that wait for it.  oldest_parked_s: seconds for which the first of them has waited.
    never: jobs that cost more than all of the budget.
    """

    key: str
    kind: str
    name: str
    queues: tuple[str, ...]
    concurrency: int | None
    budget: int | None
    rate_count: int | None
    rate_s: float | None
    stored: bool
    running: int
    cost: int
    started: int
    parked: int
    oldest_parked_s: float | None
    never: int

    @property
    def limit(self) -> str:
        """All its limits in words."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} at a time")
        if self.budget is not None:
            parts.append(f"budget {self.budget}")
        if self.rate_count is not None:
            parts.append(f"{self.rate_count} in {self.rate_s:g} s")
        return ", ".join(parts)


def check_key(value: object) -> tuple[str, str]:
    """A limited key as its kind and name, or a UsageError."""
    kind, colon, name = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    if kind not in KINDS or not colon:
        raise UsageError(
            f"{quoted(str(value))} is no limited key", "give group:NAME, queue:NAME or rate:NAME"
        )
    if kind == "queue":
        return kind, check_queue(name)
    return kind, check_name("concurrency_group" if kind == "group" else "rate_key", name)


def listing(
    conn: Connection, budgets: Budgets = NO_BUDGETS, *, key: str | None = None, limit: int = MOST_KEYS
) -> list[Meter]:
    """The limited keys that are set or in use, those with most parked jobs first. Reads all live jobs once.

    budgets: by the settings; what is set in the database wins.  key: only this one.
    """
    kind, name = check_key(key) if key else (None, None)
    rows = reader.rows(conn, statement("meters"), {"kind": kind, "name": name, "size": limit})
    return [_with_budget(Meter(*(*row[:3], tuple(row[3]), *row[4:])), budgets) for row in rows]


def find(conn: Connection, key: str, budgets: Budgets = NO_BUDGETS) -> Meter:
    """One limited key. Raises MeterNotFound if it is neither set nor in use."""
    found = listing(conn, budgets, key=key, limit=1)
    if not found:
        raise MeterNotFound(f"no limit is set for {key}, and no job waits for it or runs under it")
    return found[0]


def put(conn: Connection, key: str, limits: Mapping[str, Any]) -> None:
    """Set limits of a key, for all hosts at once; what runs goes on.

    limits: concurrency (group), budget (group, queue), rate_count and rate_s (rate); None leaves one as it is.
    Once this returns no job is admitted that the limits leave no room for.
    """
    kind, name = check_key(key)
    values = {
        "kind": kind,
        "name": name,
        "concurrency": None,
        "budget": None,
        "rate_count": None,
        "rate_s": None,
    }
    values |= limits
    allowed = {"group": {"concurrency", "budget"}, "queue": {"budget"}, "rate": {"rate_count", "rate_s"}}[
        kind
    ]
    for limit, value in limits.items():
        if value is not None and limit not in allowed:
            word = "rate" if limit.startswith("rate") else limit
            raise UsageError(f"{key} has no {word}", _POSSIBLE[kind])
    if all(value is None for value in limits.values()):
        raise UsageError(f"no limit is given for {key}", _POSSIBLE[kind])
    repeated(conn, lambda: conn.execute(_SET, values, prepare=False))
    wait_for_claims(conn, f"the limit of {key} is set")
    if kind == "queue":
        repeated(conn, lambda: conn.execute(_COUNT_RUNNING, {"name": name}, prepare=False))
    _look_again(conn, key)


def reset(conn: Connection, key: str) -> bool:
    """Forget what is set for a key: jobs and settings decide again. False if nothing was set."""
    kind, name = check_key(key)
    text = "DELETE FROM queuety.meters WHERE kind = %(kind)s AND name = %(name)s"
    gone = repeated(conn, lambda: conn.execute(text, {"kind": kind, "name": name}, prepare=False).rowcount)
    _look_again(conn, key)
    return bool(gone)


def _look_again(conn: Connection, key: str) -> None:
    """Send what cost more than the whole budget back to its claim, which looks again."""
    values = {"keys": [f"never:{key}"], "size": BATCH}
    while repeated(conn, lambda: conn.execute(statement("unpark"), values, prepare=False).rowcount) == BATCH:
        pass
    notices.tell_key(conn, key)


def _with_budget(meter: Meter, budgets: Budgets) -> Meter:
    if meter.budget is not None or meter.kind == "rate":
        return meter
    by_settings = budgets.queues if meter.kind == "queue" else budgets.groups
    return replace(meter, budget=by_settings.get(meter.name))


_POSSIBLE = {
    "group": "give a group a concurrency or a budget",
    "queue": "give a queue a budget",
    "rate": "give a rate key a rate: starts and seconds",
}


def as_json(meter: Meter) -> dict[str, Any]:
    """A meter for programs."""
    rate = None if meter.rate_count is None else {"starts": meter.rate_count, "seconds": meter.rate_s}
    return {
        "key": meter.key,
        "limit": {"concurrency": meter.concurrency, "budget": meter.budget, "rate": rate},
        "stored": meter.stored,
        "queues": list(meter.queues),
        "running": meter.running,
        "cost": meter.cost,
        "started": meter.started,
        "parked": meter.parked,
        "oldest_parked_s": meter.oldest_parked_s,
        "never": meter.never,
    }
