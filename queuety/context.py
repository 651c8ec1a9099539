"""What a handler may ask of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from queuety.model import Priority
from queuety.texts import clean

if TYPE_CHECKING:
    import psycopg

_MESSAGE = 500  # signs of a progress message that are kept
_QUIET_S = 0.5  # two events a second, of each kind
_AHEAD = 20  # so many more of progress may be written ahead of that, for what is worth telling at once


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
        fit = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        fit = False
    return value if fit else None


def _step(
    step: float | None = None, total: float | None = None, message: str | None = None
) -> tuple[object, ...]:
    """What an event is worth writing at once for: another message, another total, another tenth of the way."""
    tenth = int(10 * min(max(step / total, 0.0), 1.0)) if step is not None and total else None
    return message, total, tenth


class Run(Protocol):
    """What a context needs of the process that runs the job."""

    def cancel_asked(self) -> bool: ...

    def encoded(self, kind: str, data: dict[str, Any]) -> str: ...

    def note(self, kind: str, text: str) -> None: ...

    def transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...


class Context:
    """Handed to a handler by a parameter annotated `Context`; never part of the payload."""

    def __init__(self, job: RunningJob, run: Run) -> None:
        self.job = job
        self.told_to_stop = False
        self._run = run
        self._unsent: dict[
            str, Any
        ] = {}  # what is held back, one of a kind, in the order in which it was told
        self._sent: tuple[object, ...] | None = None  # the step that the last progress event told
        self._sent_at = {"progress": -math.inf, "partial": -math.inf}
        self._spent = 0.0  # progress events written ahead of two a second

    def progress(
        self, step: float | None = None, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell how far the job is.

        Never worth the job's failure: a step or total that is no finite number is left out, a message is made a text
        and cut. Numbers are kept as they are told, also those below 0 or beyond the total.

        Cheap to call often: two events a second are written, and at once each new message, each new total and each
        tenth of the way, up to twenty ahead of that pace. What comes in between is held back, as `partial` does; the
        last one never is.
        """
        text = None if message is None else clean(str(message), _MESSAGE)
        told = (("step", _number(step)), ("total", _number(total)), ("message", text))
        self._tell("progress", {key: value for key, value in told if value is not None})

    def partial(self, data: dict[str, Any]) -> None:
        """Hand out a first part of the result while the job runs on.

        data: strict JSON, no larger than a payload may be; raises PayloadError otherwise. Give all that there is so
        far, not only what is new: of several within half a second only the last is kept.

        Cheap to call often: two events a second are written, the first one at once. What comes in between is held
        back until the next call of this context half a second later; the last one is written at the end of the run,
        also of one that fails. Only a worker that is killed takes with it what it holds. Parts and progress are
        written in the order in which they were told.
        """
        self._tell(
            "partial", self._run.encoded("partial", data)
        )  # now: the handler may change it, or hear of a fault

    def should_stop(self) -> bool:
        """True once somebody has asked to cancel the job: tidy up and return, and the job ends cancelled.

        A handler that asks is given a few seconds before it is interrupted.
        """
        self._write_due()
        self.told_to_stop = self._run.cancel_asked()
        return self.told_to_stop

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a transaction of the queue's database whose commit also completes the job.

        Yields a psycopg connection. Either what was written with it and the job's completion are both committed,
        or neither is: such effects happen exactly once. Raises LeaseLost at the end of the block if the job has
        been given to somebody else. What the handler raises after the block is logged and changes nothing.
        """
        with self._run.transaction() as conn:
            yield conn
            self.flush()  # a job that has completed has no more events

    def flush(self) -> None:
        """Write what was held back."""
        while self._unsent:
            self._write(next(iter(self._unsent)), time.monotonic())

    def _tell(self, kind: str, data: Any) -> None:
        self._unsent.pop(kind, None)
        self._unsent[kind] = data
        self._write_due()

    def _write_due(self) -> None:
        """Write what has waited for long enough, or need not; what was told after something that waits, waits too."""
        while self._unsent:
            kind, now = next(iter(self._unsent)), time.monotonic()
            if now - self._sent_at[kind] < _QUIET_S and not (kind == "progress" and self._worth_it()):
                return
            self._write(kind, now)

    def _worth_it(self) -> bool:
        return self._spent < _AHEAD and _step(**self._unsent["progress"]) != self._sent

    def _write(self, kind: str, now: float) -> None:
        data = self._unsent.pop(kind)
        since, self._sent_at[kind] = now - self._sent_at[kind], now
        if kind == "progress":
            # What was not written meanwhile may be later.
            self._spent = max(0.0, self._spent + 1 - since / _QUIET_S)
            self._sent = _step(**data)
            data = self._run.encoded(kind, data)
        self._run.note(kind, data)
