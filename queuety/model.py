"""The values that everything else speaks of. Frozen; no I/O, no clock."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

Payload: TypeAlias = dict[str, Any]


class State(enum.StrEnum):
    """The five states of a job; every change between them is one transaction."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    BURIED = "buried"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (State.COMPLETED, State.BURIED, State.CANCELLED)


class Priority(enum.IntEnum):
    """The four levels of a queue; a lane is one queue at one of them."""

    URGENT = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job must have room for before it starts; what is None does not limit it.

    group, concurrency: at most so many runs of the group at a time, over all hosts.
    cost: units that a run takes of the budgets of its queue and group.
    rate_key, rate_count, rate_s: at most so many starts with this key in any window of so many seconds.
    What is set in the database for the group, queue or key wins over these figures.
    """

    group: str | None = None
    concurrency: int | None = None
    cost: int | None = None
    rate_key: str | None = None
    rate_count: int | None = None
    rate_s: float | None = None

    def to_json(self) -> str | None:
        """As the database keeps it; None if nothing limits the job."""
        found = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return json.dumps(found, ensure_ascii=False) if found else None

    @classmethod
    def from_json(cls, text: str) -> Limits:
        data = json.loads(text)
        return cls(**{name: data.get(name) for name in cls.__slots__})

    @property
    def keys(self) -> list[str]:
        """The keys that a job waits for if there is no room, but for its queue's."""
        keys = [f"group:{self.group}"] if self.group else []
        return [*keys, f"rate:{self.rate_key}"] if self.rate_key else keys


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What went wrong in one run, fit to be stored.

    type: name of the exception's type, or of the cause (`TimeLimitExceeded`, `WorkerLost`).
    message, traceback: cleaned and cut texts.
    """

    type: str
    message: str
    traceback: str | None = None

    def as_json(self) -> dict[str, str]:
        data = {"type": self.type, "message": self.message}
        if self.traceback:
            data["traceback"] = self.traceback
        return data


@dataclass(frozen=True, slots=True)
class Job:
    """A job as a reader sees it, in any state."""

    id: int
    queue: str
    handler: str
    state: State
    priority: Priority
    attempts: int
    max_attempts: int
    payload: Payload
    result: Any
    error: dict[str, Any] | None
    tags: tuple[str, ...]
    parked_on: str | None
    unique_key: str | None
    worker: str | None
    available_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A checked job about to be written. `payload` is strict JSON text; `delay_s` and `at` exclude each other."""

    handler: str
    payload: str
    queue: str = "default"
    priority: int = Priority.NORMAL
    max_attempts: int = 3
    delay_s: float | None = None
    at: datetime | None = None
    tags: tuple[str, ...] = ()
    unique: bool = False  # under a key made of handler and payload, unless unique_key is given
    unique_key: str | None = None
    unique_until: str = "end"  # or start
    unique_for_s: float | None = None  # a window, instead
    on_duplicate: str = "return"
    backoff: str | None = None
    limits: str | None = None

    @property
    def keyed(self) -> bool:
        """True if it is written under a unique key."""
        return self.unique or self.unique_key is not None

    @property
    def until(self) -> str:
        """What frees its unique key: start, end or window."""
        return self.unique_until if self.unique_for_s is None else "window"

    def settings_json(self) -> str:
        """All but handler, payload and due time, as a schedule keeps it; what is as usual is left out."""
        default = NewJob("", "")
        kept = {name: getattr(self, name) for name in _KEPT if getattr(self, name) != getattr(default, name)}
        return json.dumps(kept, ensure_ascii=False)

    @classmethod
    def from_settings(cls, handler: str, payload: str, settings: dict[str, Any]) -> NewJob:
        """The job that `settings_json` was written of."""
        kept = {name: value for name, value in settings.items() if name in _KEPT}
        return cls(handler, payload, **{**kept, "tags": tuple(kept.get("tags", ()))})

    @property
    def plain(self) -> bool:
        """True if it is due at once and has neither tags nor limits nor a back-off of its own."""
        return not (self.delay_s or self.at or self.tags or self.backoff or self.limits)


_KEPT = (
    "queue", "priority", "max_attempts", "tags", "unique", "unique_key", "unique_until", "unique_for_s",
    "on_duplicate", "backoff", "limits",
)  # fmt: skip


class Overlap(enum.StrEnum):
    """What becomes of a tick while the job of the one before has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    BUFFER = "buffer"  # one tick waits for that end; further ones are skipped


class Missed(enum.StrEnum):
    """What becomes of ticks whose time passed while nobody could run them."""

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"  # within a limit


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A checked schedule about to be written.

    job: what each of its jobs is like, payload included.  cron and every_s (seconds) exclude each other.
    jitter_s: each job is due up to so many seconds after its tick.  missed_limit: ticks that "all" makes up for.
    """

    key: str
    job: NewJob
    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_s: float = 0.0
    overlap: Overlap = Overlap.ALLOW
    missed: Missed = Missed.ONCE
    missed_limit: int = 100


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stands.

    job: settings of its jobs as they are stored.  declared_by: the application whose code declares it; None: made by
    command or call.  anchor: what an interval counts from.  next_at: None if no tick is to come.
    last_at, last_job: the last tick that ran, and its job.  broken: why the next tick cannot be computed.
    """

    key: str
    handler: str
    payload: Payload
    job: dict[str, Any]
    cron: str | None
    every_s: float | None
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None
    jitter_s: float
    overlap: Overlap
    missed: Missed
    missed_limit: int
    declared_by: str | None
    anchor: datetime
    next_at: datetime | None
    buffered_at: datetime | None
    last_at: datetime | None
    last_job: int | None
    paused_at: datetime | None
    pause_reason: str | None
    retired_at: datetime | None
    broken: str | None
    created_at: datetime
    changed_at: datetime

    @property
    def state(self) -> str:
        """In a word: active, paused, broken, retired, or over (no tick is to come)."""
        if self.retired_at is not None:
            return "retired"
        if self.broken is not None:
            return "broken"
        if self.paused_at is not None:
            return "paused"
        return "over" if self.next_at is None and self.buffered_at is None else "active"


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the schedules' journal.

    kind: run, skip or fail.  through: the last of several ticks in a row that were skipped for one reason; ticks:
    how many, counted up to MOST_COUNTED.  reason: why it was skipped or failed, or "by hand".
    ended: how the job ended: done, fail, or gone if it was deleted before anybody looked; None while it has not.
    """

    schedule: str
    at: datetime
    kind: str
    reason: str | None = None
    job_id: int | None = None
    through: datetime | None = None
    ticks: int = 1
    ended: str | None = None
    error: dict[str, Any] | None = None
    noted_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told of the ends of jobs. Its secret and the values of its headers are not part of what is shown.

    events: job.completed, job.failed, job.canceled.  handlers, queues, tags: only such jobs; empty: all.
    deliver_on: the queue of its deliveries.  concurrency: of them at a time.  headers: the names of further ones.
    rotating_until: until when the secret before the current one signs as well.
    """

    name: str
    url: str
    events: tuple[str, ...]
    handlers: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    deliver_on: str = "default"
    concurrency: int = 2
    max_attempts: int = 10
    headers: tuple[str, ...] = ()
    allow_private: bool = False
    rotating_until: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScheduleEvent:
    """What became of a tick, as callbacks are told it (see Queuety.on_schedule).

    kind: run (its job is written), skip, done (the job completed) or fail.  schedule: the key.  at: the tick.
    job_id: the tick's job, if it has one.  reason: why it was skipped or failed, or "by hand".
    phase: of a fail, where: "schedule" (the next tick cannot be computed), "enqueue" (the job was refused) or "run"
    (the job was buried or cancelled; `error` says more).  through, ticks: the last of several ticks in a row that
    were skipped for one reason, and how many they are.
    """

    kind: str
    schedule: str
    at: datetime
    job_id: int | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    phase: str | None = None
    through: datetime | None = None
    ticks: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's journal."""

    id: int
    job_id: int
    type: str
    at: datetime
    attempt: int | None
    data: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a job's stream, as its viewers see it.

    event_id: "number.part"; the same for every viewer, early or late, and growing within a job.
    type: job.started, job.progress, job.partial, job.completed, job.failed or job.canceled.
    """

    event_id: str
    type: str
    job_id: int
    at: datetime
    payload: dict[str, Any]

    @property
    def final(self) -> bool:
        """True for the one event that tells a job's end; after a retry by hand another life begins."""
        return self.type in FINAL_EVENTS

    def as_json(self) -> dict[str, Any]:
        """As other programs are told: ids as texts, the time in UTC."""
        return {
            "event_id": self.event_id,
            "type": self.type,
            "job_id": str(self.job_id),
            "timestamp": self.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "payload": self.payload,
        }


FINAL_EVENTS = frozenset({"job.completed", "job.failed", "job.canceled"})


# Outcomes: what happened to a run.


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned. `result` is JSON text or None; `note` says why a result could not be kept."""

    result: str | None = None
    note: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised. retryable: the retry policy's word on it."""

    error: ErrorInfo
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """The handler asked for another attempt. `after_s` None means the usual back-off."""

    error: ErrorInfo
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to come back later, without an attempt being counted."""

    after_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The run was over its time limit."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody cancelled the job and the run has ended."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Our own orderly stop cut the run, or the job was held and never begun: it costs nothing."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that ran the job is gone."""

    error: ErrorInfo


Outcome: TypeAlias = Returned | Raised | RetryAsked | Snoozed | TimedOut | Cancelled | Interrupted | Lost


# Settlements: what an outcome does to the job.


@dataclass(frozen=True, slots=True)
class Complete:
    result: str | None = None
    note: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """Back to pending after `delay_s`; `counted` False takes the attempt back."""

    delay_s: float
    counted: bool
    error: ErrorInfo | None
    cause: str  # retried, recovered, snoozed


@dataclass(frozen=True, slots=True)
class Bury:
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Cancel:
    pass


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Back to pending at its old place, as if never claimed."""


Settlement: TypeAlias = Complete | Again | Bury | Cancel | GiveBack
