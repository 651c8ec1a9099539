"""Claim and settle: the hot path. One transaction settles what is done and claims what comes next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from queuety.model import Limits
from queuety.store.batch import RATE, Batch, began, settlements
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes
from queuety.store.pipeline import Step, transaction
from queuety.store.statements import array, perform, texts

if TYPE_CHECKING:
    from queuety.settings import Settings


class Claimed(NamedTuple):
    """A job under a lease of ours. Times are seconds since 1970 by the database's clock."""

    id: int
    lease: int
    handler: str
    payload: str
    attempts: int
    max_attempts: int
    queue: str
    priority: int
    available_at: float
    created_at: float
    tags: list[str] | None
    backoff: str | None
    parked_s: float | None
    limits: str | None
    metered: bool | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys whose places and units its run takes."""
        return keys_of(self.limits, self.metered, self.queue)

    @property
    def rates(self) -> tuple[str, ...]:
        """The keys whose starts it counts among."""
        return _rates(self.limits) if self.limits else ()


def keys_of(limits: str | None, metered: bool | None, queue: str) -> tuple[str, ...]:
    """The keys whose places and units a run takes."""
    keys = _keys(limits) if limits else ()
    return (*keys, f"queue:{queue}") if metered else keys


@lru_cache(4096)  # jobs of one handler mostly have the same limits
def _keys(limits: str) -> tuple[str, ...]:
    return tuple(Limits.from_json(limits).keys)


@lru_cache(4096)
def _rates(limits: str) -> tuple[str, ...]:
    return tuple(key for key in _keys(limits) if key.startswith(RATE))


class Facts(NamedTuple):
    """What a verdict on a lost run needs to know."""

    id: int
    lease: int
    attempts: int
    max_attempts: int
    cancel_requested: bool
    backoff: str | None
    handler: str
    worker: str | None
    limits: str | None
    metered: bool | None
    queue: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys whose places and units its run took."""
        return keys_of(self.limits, self.metered, self.queue)


@dataclass(frozen=True)
class Budgets:
    """Cost budgets by the settings: name of a queue or group to units that may run at a time."""

    queues: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[str, str]:
        """As the statements take them."""
        return {
            "queue_budgets": json.dumps(dict(self.queues)),
            "group_budgets": json.dumps(dict(self.groups)),
        }


NO_BUDGETS = Budgets()


def budgets(settings: Settings) -> Budgets:
    return Budgets(settings.resource_queue_cost_budgets or {}, settings.resource_group_cost_budgets or {})


@dataclass(frozen=True, slots=True)
class Want:
    """A claim to be made.

    size: jobs at most, >= 1.  stale_s: how long the lease lasts, seconds.  skip: handlers that are left to others.
    limits: JSON object of handlers' limits by name, for jobs that were written by somebody who did not know them.
    guard_s: seconds from the call within which a job with a rate begins; the caller gives back what is later.
    """

    lanes: Lanes
    size: int
    worker: str
    stale_s: float
    skip: tuple[str, ...] = ()
    budgets: Budgets = NO_BUDGETS
    guard_s: float = 0.01
    limits: str | None = None


class Turn(NamedTuple):
    """What a turn did. settled: jobs of the batch (fewer than it has: their leases were lost).

    jobs: claimed, in the order in which they are to run.  refused: the keys that others had no room under; they are
    parked.  left: how many were unparked and left to others.  room_s: seconds until a rate that the batch ran under
    has room for what waits; None: nothing waits.
    """

    settled: int
    jobs: list[Claimed]
    refused: list[str] = []  # noqa: RUF012 - never written to
    left: int = 0
    room_s: float | None = None


def turn(conn: Connection, batch: Batch | None, want: Want | None) -> Turn:
    """Settle `batch`, claim what `want` asks for and admit it, in one transaction and one round trip.

    What the batch has freed is refilled first, in order, so that a key's next job can be among the claimed.
    """
    settling = [] if batch is None else settlements(batch)
    steps = [Step("pin", {}), *settling]
    if batch is not None and (batch.unstarted or batch.begun_s):
        steps.append(began(batch))
    refilling = want is not None and batch is not None and bool(batch.freed)
    if want is not None:
        if refilling and batch is not None:
            steps.append(_refill(sorted(batch.freed), want.lanes, want.budgets, places=1, each=want.size))
        steps += [_claim(want), _admit(want)]
    answers = transaction(conn, steps)
    settled = sum(answer.affected for answer in answers[1 : 1 + len(settling)])
    if want is None:
        return Turn(settled, [])
    jobs = [Claimed._make(row) for row in answers[-2].rows]
    refused = {row[0] for row in answers[-1].rows}
    unparked, room_s = answers[-3].rows[0][:2] if refilling else (0, None)
    left = (
        unparked - sum(job.limits is not None or job.metered is not None for job in jobs) if unparked else 0
    )
    if refused:
        jobs = [job for job in jobs if job.id not in refused]
    waits = [row[1] for row in answers[-1].rows]
    return Turn(settled, want.lanes.order(jobs), waits, max(left, 0), room_s)


def held(conn: Connection, lease: int, ids: list[int]) -> list[Facts]:
    """Lock what a dead worker held under `lease` and return the facts for the verdicts."""
    return [Facts._make(row) for row in perform(conn, "held", lease=lease, ids=array(ids)).fetchall()]


def expired(conn: Connection, size: int) -> list[Facts]:
    """Lock up to `size` jobs whose lease has run out; jobs that somebody else is recovering are skipped."""
    return [Facts._make(row) for row in perform(conn, "expired", size=size).fetchall()]


def renew(conn: Connection, holdings: list[tuple[int, int]], stale_s: float) -> dict[tuple[int, int], bool]:
    """Renew the leases of (id, lease) pairs; map each that is still ours to "cancel was asked for"."""
    rows = perform(
        conn,
        "renew",
        ids=array([job_id for job_id, _ in holdings]),
        leases=array(sorted({lease for _, lease in holdings})),
        stale=stale_s,
    ).fetchall()
    return {(row[0], row[1]): row[2] for row in rows}


def strays(conn: Connection, worker: str, leases: list[int]) -> list[int]:
    """Give back what `worker` was given but never heard of; `leases` are those that it does hold."""
    given = Step("strays", {"worker": worker, "leases": array(leases)})
    return [row[0] for row in transaction(conn, [Step("pin", {}), given])[1].rows]


def look(
    conn: Connection, lanes: Lanes, size: int, handlers: list[str] | None = None
) -> tuple[int, float | None]:
    """Count what is due in the lanes (up to `size`) and say in how many seconds the next job falls due.

    handlers: of what is looked at only their jobs count; None: all.
    """
    row = perform(
        conn, "look", queues=lanes.names, priorities=lanes.priorities, size=size, handlers=handlers
    ).fetchone()
    return (row[0], row[1]) if row else (0, None)


def refill(
    conn: Connection,
    lanes: Lanes,
    budgets: Budgets,
    *,
    places: int,
    keys: Sequence[str] | None = None,
    after: str | None = None,
) -> tuple[int, float | None, str | None]:
    """Unpark what there is room for, of some keys that have become freer, or of all keys after one.

    Of the former other pools are told, if what waits is in none of the lanes. The latter may be too many for one
    call: then a key comes back.
    Returns how many were unparked, the seconds until a rate has room again, and the key to go on after.
    """
    step = _refill(keys, lanes, budgets, places=places, each=1, after=after)
    row = perform(conn, step.name, **step.values).fetchone()
    return (row[0], row[1], row[2]) if row else (0, None, None)


def unpark(conn: Connection, keys: list[str], size: int) -> int:
    """Unpark up to `size` jobs of each key, in order; returns how many."""
    return int(perform(conn, "unpark", keys=keys, size=size).rowcount)


def waiting(conn: Connection, prefix: str) -> list[str]:
    """Keys with this prefix, which ends in a colon, that jobs are parked on."""
    last = prefix.removesuffix(":") + ";"  # the sign after a colon
    return [row[0] for row in perform(conn, "waiting", from_key=prefix, to_key=last).fetchall()]


def unpark_here(conn: Connection, key: str, queues: Sequence[str], size: int) -> int:
    """Unpark up to `size` jobs of these queues that wait for `key`, in order; returns how many."""
    return int(perform(conn, "unpark_here", key=key, queues=list(queues), size=size).rowcount)


def overdue(conn: Connection, grace_s: float) -> list[str]:
    """Keys of jobs that have waited for an unknown handler for longer than `grace_s` seconds."""
    return [row[0] for row in perform(conn, "overdue", grace=grace_s).fetchall()]


def cancels(conn: Connection, ids: list[int]) -> list[int]:
    """Those of the running jobs `ids` that somebody has asked to cancel."""
    return [row[0] for row in perform(conn, "cancels", ids=array(ids)).fetchall()]


def left(conn: Connection, queues: Sequence[str], cap: int) -> int:
    """Count the pending jobs that are left in these queues, up to `cap`."""
    row = perform(conn, "left", queues=list(queues), size=cap).fetchone()
    return int(row[0]) if row else 0


def keep_result(conn: Connection, job_id: int, result: str) -> None:
    """Add a result (JSON text) to a job that its own transaction has completed."""
    perform(conn, "keep_result", id=job_id, result=result)


def _claim(want: Want) -> Step:
    return Step(
        "claim",
        {
            **want.lanes.values(),
            "size": str(want.size),
            "worker": want.worker,
            "stale": str(want.stale_s),
            "skip": texts(want.skip),
            "limits": want.limits,
            "budgeted": texts(list(want.budgets.queues)),
        },
    )


def _admit(want: Want) -> Step:
    return Step(
        "admit",
        {"lanes": want.lanes.order_of_queues, "guard": str(want.guard_s), **want.budgets.values},
    )


def _refill(
    keys: Sequence[str] | None,
    lanes: Lanes,
    budgets: Budgets,
    *,
    places: int,
    each: int,
    after: str | None = None,
) -> Step:
    return Step(
        "refill",
        {
            "keys": None if keys is None else texts(list(keys)),
            "lanes": lanes.order_of_queues,
            "places": str(places),
            "each": str(each),
            "after": after,
            **budgets.values,
        },
    )
