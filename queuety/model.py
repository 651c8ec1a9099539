"""The values that everything else speaks of. Frozen; no I/O, no clock."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import datetime
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

    @property
    def plain(self) -> bool:
        """True if it is due at once and has neither tags nor limits nor a back-off of its own."""
        return not (self.delay_s or self.at or self.tags or self.backoff or self.limits)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's journal."""

    id: int
    job_id: int
    type: str
    at: datetime
    attempt: int | None
    data: dict[str, Any] | None


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
