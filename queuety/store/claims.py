"""Claim and settle: the hot path. One transaction settles what is done and claims what comes next."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from queuety.model import Again, Bury, Cancel, Complete, ErrorInfo, GiveBack, Limits, Priority, Settlement
from queuety.store.connect import Connection
from queuety.store.pipeline import Step, transaction
from queuety.store.statements import array, statement, texts

if TYPE_CHECKING:
    from queuety.settings import Settings

FRONT = float("-inf")
RATE = "rate:"
LONG_S = 1e6
LARGEST_CAP = 2**31 - 1


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
        keys = _keys(self.limits) if self.limits else ()
        return (*keys, f"queue:{self.queue}") if self.metered else keys

    @property
    def rates(self) -> tuple[str, ...]:
        """The keys whose starts it counts among."""
        return _rates(self.limits) if self.limits else ()


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


class Lanes:
    """The lanes of a queue list in claim order, each with the cursor where the last claim ended.

    The cursor spares a claim the dead index entries of jobs that are settled already. What became claimable
    behind it is found when the claim starts from the front again: see `rewind`.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._pairs = [(queue, int(level)) for queue in queues for level in Priority]
        self._place = {pair: index for index, pair in enumerate(self._pairs)}
        self._at = [FRONT] * len(self._pairs)
        self._id = [0] * len(self._pairs)
        self.order_of_queues = texts(queues)
        self.at_front = True
        self.arrange([(queues, LARGEST_CAP)])

    def arrange(self, lines: Sequence[tuple[Sequence[str], int]]) -> None:
        """Present the lanes line by line from now on. lines: the queues of each, and the most it may give.

        Each queue is in one line; the cursors stay with their lanes.
        """
        self._shown = [
            self._place[queue, level] for queues, _ in lines for queue in queues for level in Priority
        ]
        self.names = texts([self._pairs[place][0] for place in self._shown])
        self.priorities = array([self._pairs[place][1] for place in self._shown])
        self._lines = array(
            [
                number
                for number, (queues, _) in enumerate(lines, 1)
                for _ in range(len(queues) * len(Priority))
            ]
        )
        self._caps = array([cap for _, cap in lines])

    def rewind(self) -> None:
        """Let the next claim start from the front of every lane."""
        if not self.at_front:
            self._at = [FRONT] * len(self._at)
            self._id = [0] * len(self._id)
            self.at_front = True

    def values(self) -> dict[str, str]:
        """The lanes as parameters of a claim."""
        return {
            "queues": self.names,
            "priorities": self.priorities,
            "after_at": array([self._at[place] for place in self._shown]).replace("inf", "Infinity"),
            "after_id": array([self._id[place] for place in self._shown]),
            "lines": self._lines,
            "caps": self._caps,
        }

    def order(self, jobs: list[Claimed]) -> list[Claimed]:
        """Sort a claim by place in the queue list, priority, due time and id, and advance the cursors past it."""
        place = self._place
        jobs.sort(key=lambda job: (place[job.queue, job.priority], job.available_at, job.id))
        last: dict[int, Claimed] = {place[job.queue, job.priority]: job for job in jobs}
        for index, job in last.items():
            self._at[index], self._id[index] = job.available_at, job.id
            self.at_front = False
        return jobs


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
    guard_s: seconds from the call within which a job with a rate begins; the caller gives back what is later.
    """

    lanes: Lanes
    size: int
    worker: str
    stale_s: float
    skip: tuple[str, ...] = ()
    budgets: Budgets = NO_BUDGETS
    guard_s: float = 0.01


class Turn(NamedTuple):
    """What a turn did. settled: jobs of the batch (fewer than it has: their leases were lost).

    jobs: claimed, in the order in which they are to run.  refused: how many others there was no room for; they are
    parked.  left: how many were unparked and left to others.
    """

    settled: int
    jobs: list[Claimed]
    refused: int = 0
    left: int = 0


@dataclass(slots=True)
class Batch:
    """What the jobs of one lease came to, gathered until the next turn settles them in one transaction."""

    lease: int
    completed: list[tuple[int, float, float, str | None, str | None]] = field(default_factory=list)
    again: list[tuple[int, Again]] = field(default_factory=list)
    buried: list[tuple[int, ErrorInfo, float, float]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    given_back: list[int] = field(default_factory=list)
    parked: list[tuple[int, str]] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)  # keys that have room once this is settled
    unstarted: list[str] = field(default_factory=list)  # rate keys of jobs given back before they began
    begun_s: float = 0.0  # when the last job with a rate began, by the monotonic clock; 0: none did

    def add(self, job_id: int, settlement: Settlement, began_s: float = 0.0, ended_s: float = 0.0) -> None:
        """Note a settlement. began_s, ended_s: seconds after the claim, for the finished row."""
        match settlement:
            case Complete(result, note):
                self.completed.append((job_id, began_s, ended_s, result, _error(note)))
            case Again():
                self.again.append((job_id, settlement))
            case Bury(error):
                self.buried.append((job_id, error, began_s, ended_s))
            case Cancel():
                self.cancelled.append(job_id)
            case GiveBack():
                self.given_back.append(job_id)
            case _:
                assert_never(settlement)

    def clear(self) -> None:
        """Forget everything: it has been settled."""
        for part in (self.completed, self.again, self.buried, self.cancelled, self.given_back, self.parked):
            part.clear()
        self.unstarted.clear()  # but for what is freed: that is for the next claim
        self.begun_s = 0.0

    def strip(self) -> None:
        """Leave the bare outcomes, without results, errors and notes that the database refuses."""
        lost = ErrorInfo("DetailsLost", "the details could not be stored")
        note = _error(ErrorInfo("ResultNotKept", "the database refused it"))
        self.completed = [(*row[:3], None, note if row[3] else None) for row in self.completed]
        self.again = [(job_id, replace(again, error=lost)) for job_id, again in self.again]
        self.buried = [(row[0], lost, row[2], row[3]) for row in self.buried]

    def __len__(self) -> int:
        return (
            len(self.completed)
            + len(self.again)
            + len(self.buried)
            + len(self.cancelled)
            + len(self.given_back)
            + len(self.parked)
        )


def turn(conn: Connection, batch: Batch | None, want: Want | None) -> Turn:
    """Settle `batch`, claim what `want` asks for and admit it, in one transaction and one round trip.

    What the batch has freed is refilled first, in order, so that a key's next job can be among the claimed.
    """
    settling = [] if batch is None else _settlements(batch)
    steps = [Step("pin", {}), *settling]
    if batch is not None and (batch.unstarted or batch.begun_s):
        steps.append(_began(batch))
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
    unparked = answers[-3].rows[0][0] if refilling else 0
    left = (
        unparked - sum(job.limits is not None or job.metered is not None for job in jobs) if unparked else 0
    )
    if refused:
        jobs = [job for job in jobs if job.id not in refused]
    return Turn(settled, want.lanes.order(jobs), len(refused), max(left, 0))


def settle(conn: Connection, batch: Batch) -> int:
    """Settle `batch` inside the caller's transaction; returns how many jobs were really settled."""
    return sum(_run(conn, step.name, **step.values).rowcount for step in _settlements(batch))


def _settlements(batch: Batch) -> list[Step]:
    """The statements that settle a batch, in the order completed, again, buried, given back, parked, cancelled.

    The last one comes last: it also takes what the others left behind because somebody asked to cancel it
    meanwhile.
    """
    steps: list[Step] = []

    def add(name: str, **values: str) -> None:
        steps.append(Step(name, {"lease": str(batch.lease), **values}))

    if batch.completed:
        ids, began, ended, results, errors = zip(*batch.completed, strict=True)
        add(
            "complete",
            ids=array(ids),
            began=array(began),
            ended=array(ended),
            results=texts(results),
            errors=texts(errors),
        )
    if batch.again:
        add(
            "again",
            ids=array([job_id for job_id, _ in batch.again]),
            delays=array([again.delay_s for _, again in batch.again]),
            counted=array(["t" if again.counted else "f" for _, again in batch.again]),
            errors=texts([_error(again.error) for _, again in batch.again]),
            causes=texts([again.cause for _, again in batch.again]),
        )
    if batch.buried:
        add(
            "bury",
            ids=array([row[0] for row in batch.buried]),
            errors=texts([_error(row[1]) for row in batch.buried]),
            began=array([row[2] for row in batch.buried]),
            ended=array([row[3] for row in batch.buried]),
        )
    if batch.given_back or batch.cancelled:
        # A cancelled one too: if nobody has asked for it under this lease, it is given back rather than stuck.
        add("give_back", ids=array([*batch.given_back, *batch.cancelled]))
    if batch.parked:
        add(
            "park",
            ids=array([job_id for job_id, _ in batch.parked]),
            keys=texts([key for _, key in batch.parked]),
        )
    # Statement after statement: what `again` and `give_back` refused for a cancel request, this one takes.
    asked = [
        *batch.cancelled,
        *(job_id for job_id, _ in batch.again),
        *batch.given_back,
        *(job_id for job_id, _ in batch.parked),
    ]
    if asked:
        add("cancel_run", ids=array(asked))
    return steps


def held(conn: Connection, lease: int, ids: list[int]) -> list[Facts]:
    """Lock what a dead worker held under `lease` and return the facts for the verdicts."""
    return [Facts._make(row) for row in _run(conn, "held", lease=lease, ids=array(ids)).fetchall()]


def expired(conn: Connection, size: int) -> list[Facts]:
    """Lock up to `size` jobs whose lease has run out; jobs that somebody else is recovering are skipped."""
    return [Facts._make(row) for row in _run(conn, "expired", size=size).fetchall()]


def renew(conn: Connection, holdings: list[tuple[int, int]], stale_s: float) -> dict[tuple[int, int], bool]:
    """Renew the leases of (id, lease) pairs; map each that is still ours to "cancel was asked for"."""
    rows = _run(
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


def look(conn: Connection, lanes: Lanes, size: int) -> tuple[int, float | None]:
    """Count what is due in the lanes (up to `size`) and say in how many seconds the next job falls due."""
    row = _run(conn, "look", queues=lanes.names, priorities=lanes.priorities, size=size).fetchone()
    return (row[0], row[1]) if row else (0, None)


def refill(
    conn: Connection, lanes: Lanes, budgets: Budgets, *, places: int, after: str | None = None
) -> tuple[int, float | None, str | None]:
    """Unpark what there is room for, of all keys after one; the keys are too many for one call if one comes back.

    Returns how many were unparked, the seconds until a rate has room again, and the key to go on after.
    """
    step = _refill(None, lanes, budgets, places=places, each=1, after=after)
    row = _run(conn, step.name, **step.values).fetchone()
    return (row[0], row[1], row[2]) if row else (0, None, None)


def unpark(conn: Connection, keys: list[str], size: int) -> int:
    """Unpark up to `size` jobs of each key, in order; returns how many."""
    return int(_run(conn, "unpark", keys=keys, size=size).rowcount)


def waiting(conn: Connection, prefix: str) -> list[str]:
    """Keys with this prefix, which ends in a colon, that jobs are parked on."""
    last = prefix.removesuffix(":") + ";"  # the sign after a colon
    return [row[0] for row in _run(conn, "waiting", from_key=prefix, to_key=last).fetchall()]


def unpark_here(conn: Connection, key: str, queues: Sequence[str], size: int) -> int:
    """Unpark up to `size` jobs of these queues that wait for `key`, in order; returns how many."""
    return int(_run(conn, "unpark_here", key=key, queues=list(queues), size=size).rowcount)


def overdue(conn: Connection, grace_s: float) -> list[str]:
    """Keys of jobs that have waited for an unknown handler for longer than `grace_s` seconds."""
    return [row[0] for row in _run(conn, "overdue", grace=grace_s).fetchall()]


def cancels(conn: Connection, ids: list[int]) -> list[int]:
    """Those of the running jobs `ids` that somebody has asked to cancel."""
    return [row[0] for row in _run(conn, "cancels", ids=array(ids)).fetchall()]


def left(conn: Connection, queues: Sequence[str], cap: int) -> int:
    """Count the pending jobs that are left in these queues, up to `cap`."""
    row = _run(conn, "left", queues=list(queues), size=cap).fetchone()
    return int(row[0]) if row else 0


def keep_result(conn: Connection, job_id: int, result: str) -> None:
    """Add a result (JSON text) to a job that its own transaction has completed."""
    _run(conn, "keep_result", id=job_id, result=result)


def _claim(want: Want) -> Step:
    return Step(
        "claim",
        {
            **want.lanes.values(),
            "size": str(want.size),
            "worker": want.worker,
            "stale": str(want.stale_s),
            "skip": texts(want.skip),
            "budgeted": texts(list(want.budgets.queues)),
        },
    )


def _admit(want: Want) -> Step:
    return Step(
        "admit",
        {"lanes": want.lanes.order_of_queues, "guard": str(want.guard_s), **want.budgets.values},
    )


def _began(batch: Batch) -> Step:
    return Step(
        "began",
        {
            "lease": str(batch.lease),
            "keys": texts(sorted(key for key in batch.freed if key.startswith(RATE))),
            "none": texts(batch.unstarted),
            # Before the run has ended nobody knows better than the claim did.
            "ago": str(time.monotonic() - batch.begun_s if batch.begun_s else -LONG_S),
        },
    )


def _refill(
    keys: list[str] | None,
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
            "keys": None if keys is None else texts(keys),
            "lanes": lanes.order_of_queues,
            "places": str(places),
            "each": str(each),
            "after": after,
            **budgets.values,
        },
    )


def _run(conn: Connection, name: str, **values: Any) -> Any:
    return conn.execute(statement(name), values, prepare=conn.prepare_threshold is not None)


def _error(error: ErrorInfo | None) -> str | None:
    return None if error is None else json.dumps(error.as_json(), ensure_ascii=False)
