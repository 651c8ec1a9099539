"""The one tree of errors. A message states the fact with its values; a hint names the next action."""

from __future__ import annotations

from typing import Any


class QueuetyError(Exception):
    """Everything that Queuety itself raises on purpose.

    message: the fact, with its values.  hint: what to do next; may be empty.
    exit_code: what a command ends with when this reaches it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(QueuetyError):
    """A setting, option, name or number that cannot be meant."""

    exit_code = 2


class PayloadError(UsageError):
    """A payload, result or argument that strict JSON cannot carry; the message names the place."""


class DatabaseUnreachable(QueuetyError):
    """No usable connection: server away, wrong password, no such database."""

    exit_code = 3


class SchemaMismatch(QueuetyError):
    """The schema is missing, older or newer than this version of Queuety."""

    exit_code = 4


class RightsMissing(QueuetyError):
    """The role lacks a right on the tables of the queue."""

    exit_code = 3


class JobNotFound(QueuetyError):
    """No job has this id (any more)."""

    exit_code = 5


class MeterNotFound(QueuetyError):
    """Nothing is set for this limited key, and no job has it."""

    exit_code = 5


class ScheduleNotFound(QueuetyError):
    """No schedule has this key."""

    exit_code = 5


class WebhookNotFound(QueuetyError):
    """No webhook has this name."""

    exit_code = 5


class WrongState(QueuetyError):
    """The job's state does not allow what was asked."""

    exit_code = 6


class ScheduleExists(WrongState):
    """Another schedule has this key."""


class WebhookExists(WrongState):
    """Another webhook has this name."""


class DuplicateJob(QueuetyError):
    """Another job, `.existing`, holds the unique key; 0: it is one of the same bulk call, which wrote nothing."""

    exit_code = 6

    def __init__(self, message: str, hint: str = "", *, existing: int) -> None:
        super().__init__(message, hint)
        self.existing = existing


class ImportFailed(QueuetyError):
    """The application could not be imported or is not a Queuety application."""

    exit_code = 70


class WaitTimeout(QueuetyError):
    """The job had not ended when the caller's patience did."""


class JobFailed(QueuetyError):
    """Raised by `handle.result()` when the job was buried or cancelled; `.error` is the stored error."""

    def __init__(self, message: str, hint: str = "", *, error: dict[str, Any] | None = None) -> None:
        super().__init__(message, hint)
        self.error = error


class LeaseLost(QueuetyError):
    """The job was given to somebody else: this run can no longer change it."""


class CallRefused(UsageError):
    """A call of a CPU pool that cannot be made: no such function, or an argument that cannot be pickled."""


class CallTimeout(QueuetyError, TimeoutError):
    """The function ran longer than its time limit and was killed; `.function`, `.limit_s`."""

    def __init__(self, message: str, hint: str = "", *, function: str, limit_s: float) -> None:
        super().__init__(message, hint)
        self.function = function
        self.limit_s = limit_s


class WorkerCrashed(QueuetyError):
    """The process that ran the function died; `.code` is its exit code, `.signal` the number of what killed it."""

    def __init__(
        self, message: str, hint: str = "", *, function: str, code: int | None, signal: int | None
    ) -> None:
        super().__init__(message, hint)
        self.function = function
        self.code = code
        self.signal = signal


class RemoteError(QueuetyError):
    """Stands for an exception of the function that could not be brought here; `.kind` names its type."""

    def __init__(self, message: str, hint: str = "", *, kind: str) -> None:
        super().__init__(message, hint)
        self.kind = kind


class ResultRefused(QueuetyError):
    """The function returned, but its result could not be pickled, or not be unpickled here."""


class PoolStopped(QueuetyError):
    """The CPU pool is stopped, or was before the call could begin or end."""


class PoolBroken(PoolStopped):
    """The CPU pool's workers crashed more often than `max_restarts`."""


class WorkerUnavailable(QueuetyError):
    """No worker of the CPU pool could be started for this call, as the system had no file, process or memory left."""


class PoolFull(QueuetyError):
    """`max_waiting` calls wait already."""


# What a handler raises to steer its own job. Not QueuetyErrors: they are not mistakes.


class Retry(Exception):
    """Try this job again after `after` seconds (None: the usual back-off); counts as an attempt."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Snooze(Exception):
    """Come back in `after` seconds; does not count as an attempt."""

    def __init__(self, after: float, reason: str = "") -> None:
        super().__init__(reason)
        self.after = after
        self.reason = reason


class Permanent(Exception):
    """No further attempt can help: bury the job now."""


# What is raised inside a handler from outside. BaseExceptions, so that `except Exception` lets them pass.


class TimeLimitExceeded(BaseException):
    """The run's time limit is over."""


class JobCancelled(BaseException):
    """Somebody cancelled the job while it ran."""
