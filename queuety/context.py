"""What a handler may ask of its run."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from queuety.model import Priority
from queuety.texts import clean

if TYPE_CHECKING:
    import psycopg

_MESSAGE = 500  # signs of a progress message that are kept
_QUIET_S = 0.5  # two progress events a second
_AHEAD = 20  # so many more may be written ahead of that, for what is worth telling at once


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job that is running. attempt counts from 1."""

    id: int
    handler: str
    queue: str
    priority: Priority
    attempt: int
    max_attempts: int
    tags: tuple[str, ...]
    enqueued_at: datetime
    available_at: datetime


def _number(value: float | None) -> float | None:
    """A number that JSON can carry, or None: a handler's progress is never worth its failure."""
    try:
        fit = isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        fit = False
    return value if fit else None


def _step(step: float | None, total: float | None, message: str | None) -> tuple[object, ...]:
    """What an event is worth writing at once for: another message, another total, another tenth of the way."""
    tenth = int(10 * min(max(step / total, 0.0), 1.0)) if step is not None and total else None
    return message, total, tenth


class Run(Protocol):
    """What a context needs of the process that runs the job."""

    def cancel_asked(self) -> bool: ...

    def note(self, kind: str, data: dict[str, Any]) -> None: ...

    def transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...


class Context:
    """Handed to a handler by a parameter annotated `Context`; never part of the payload."""

    def __init__(self, job: RunningJob, run: Run) -> None:
        self.job = job
        self.told_to_stop = False
        self._run = run
        self._unsent: dict[str, Any] | None = None
        self._sent: tuple[object, ...] | None = None  # the step that the last event told
        self._sent_at = float("-inf")
        self._spent = 0.0  # events written ahead of two a second

    def progress(
        self, step: float | None = None, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell how far the job is.

        Cheap to call often: two events a second are written, and at once each new message, each new total and each
        tenth of the way, up to twenty ahead of that pace. What comes in between is held back; the last one never is.
        """
        step, total = _number(step), _number(total)
        text = None if message is None else clean(str(message), _MESSAGE)
        told = (("step", step), ("total", total), ("message", text))
        self._unsent = {key: value for key, value in told if value is not None}
        now = time.monotonic()
        if now - self._sent_at >= _QUIET_S or (
            self._spent < _AHEAD and _step(step, total, text) != self._sent
        ):
            self.flush(now)

    def partial(self, data: dict[str, Any]) -> None:
        """Hand out a first part of the result while the job runs on.

        data: strict JSON, no larger than a payload may be; raises PayloadError otherwise.
        """
        self._run.note("partial", data)

    def should_stop(self) -> bool:
        """True once somebody has asked to cancel the job: tidy up and return, and the job ends cancelled.

        A handler that asks is given a few seconds before it is interrupted.
        """
        self.told_to_stop = self._run.cancel_asked()
        return self.told_to_stop

    def transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Open a transaction of the queue's database whose commit also completes the job.

        Yields a psycopg connection. Either what was written with it and the job's completion are both committed,
        or neither is: such effects happen exactly once. Raises LeaseLost at the end of the block if the job has
        been given to somebody else. What the handler raises after the block is logged and changes nothing.
        """
        return self._run.transaction()

    def flush(self, now: float | None = None) -> None:
        """Write the last progress that was held back."""
        if self._unsent is None:
            return
        data, self._unsent = self._unsent, None
        now = time.monotonic() if now is None else now
        # What was not written meanwhile may be later.
        self._spent = max(0.0, self._spent + 1 - (now - self._sent_at) / _QUIET_S)
        self._sent_at = now
        self._sent = _step(data.get("step"), data.get("total"), data.get("message"))
        self._run.note("progress", data)
