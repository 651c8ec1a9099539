"""The values that everything else speaks of. Frozen; no I/O, no clock."""

from __future__ import annotations

import enum
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
        """True if it is due at once and has neither tags nor a back-off of its own."""
        return not (self.delay_s or self.at or self.tags or self.backoff)


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
