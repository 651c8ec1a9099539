"""Run one job: call the handler, and turn whatever happens into an outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from queuety.context import Context
from queuety.errors import JobCancelled, LeaseLost, PayloadError, Permanent, Retry, Snooze, TimeLimitExceeded
from queuety.handler import Handler
from queuety.model import (
    Cancelled,
    ErrorInfo,
    Lost,
    Outcome,
    Raised,
    RetryAsked,
    Returned,
    Snoozed,
    TimedOut,
)
from queuety.payload import dumps
from queuety.policy.retry import classify
from queuety.store.claims import Claimed
from queuety.texts import error_info

_LONGEST_DELAY_S = 10 * 365 * 86400.0
_TIDY_S = 0.5
_ABANDONED: list[asyncio.AbstractEventLoop] = []


class Runner:
    """Calls handlers. Holds the event loop that `async def` handlers share, one at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.Runner | None = None
        self._coroutine: asyncio.Task[Any] | None = None
        self.inside = False  # True while user code runs: only then may an alarm raise

    def run(
        self, handler: Handler[..., Any], job: Claimed, context: Context | None, result_limit: int
    ) -> Outcome:
        """Run the job to its outcome; never raises, whatever the handler does.

        context: None if the handler does not ask for one.  result_limit: bytes of JSON kept of a result.
        """
        try:
            payload = {} if job.payload == "{}" else json.loads(job.payload)
            arguments = handler.codec.revive(payload)
            if context is not None and handler.codec.context_parameter is not None:
                arguments = {**arguments, handler.codec.context_parameter: context}
            self.inside = True
            value = (
                self._call(handler.function, arguments) if handler.is_async else handler.function(**arguments)
            )
            self.inside = False
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its job's outcome only
            self.inside = False
            below = error.__traceback__ and error.__traceback__.tb_next  # without this frame of ours
            return outcome_of(error.with_traceback(below), handler)
        if context is not None and context.told_to_stop:
            return Cancelled()
        if value is None:
            return _RETURNED_NOTHING
        return keep(value, result_limit)

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` in the running handler; called from a signal handler of the main thread."""
        if not self.inside:
            return
        if self._coroutine is not None:
            # An exception in a callback would be swallowed by the loop. It sleeps on after a signal unless woken.
            self._coroutine.get_loop().call_soon_threadsafe(self._coroutine.cancel, error)
            return
        raise error

    def _call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.Runner()
        try:
            return self._loop.run(self._await(function, arguments), context=copy_context())
        finally:
            loop = self._loop.get_loop()
            if left := asyncio.all_tasks(loop):
                self._leave_behind(loop, left)

    def _leave_behind(self, loop: asyncio.AbstractEventLoop, left: set[asyncio.Task[Any]]) -> None:
        """Cancel what a coroutine has left running; the loop of what does not end soon is never run again."""
        self.inside = False
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=_TIDY_S))
        if asyncio.all_tasks(loop):
            _ABANDONED.append(loop)  # kept: its end would only fill the log
            self._loop = None

    async def _await(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        self._coroutine = asyncio.current_task()
        try:
            return await function(**arguments)
        except asyncio.CancelledError as error:
            if error.args and isinstance(error.args[0], TimeLimitExceeded | JobCancelled):
                raise error.args[0] from None
            raise
        finally:
            self._coroutine = None

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None


_RETURNED_NOTHING = Returned()


def outcome_of(error: BaseException, handler: Handler[..., Any]) -> Outcome:
    """The outcome of a run that ended with `error`."""
    match error:
        case TimeLimitExceeded():
            return TimedOut(error_info(error))
        case JobCancelled():
            return Cancelled()
        case LeaseLost():
            return Lost(error_info(error))
        case Snooze():
            return _snoozed(error)
        case Retry():
            return RetryAsked(error_info(error), _bounded(error.after))
        case Permanent():
            return Raised(error_info(error), retryable=False)
        case _:
            kind = classify(
                error, handler.options.retry
            )  # first: a policy that fails leaves a note on the error
            return Raised(error_info(error), retryable=kind == "transient")


def keep(value: Any, limit: int) -> Returned:
    """A result as JSON, or the reason why it cannot be kept: a handler that returned is done either way."""
    try:
        return Returned(dumps(value, limit_bytes=limit, what="result"))
    except (PayloadError, RecursionError, MemoryError, ValueError, TypeError) as error:
        message = error.message if isinstance(error, PayloadError) else str(error)
        return Returned(note=ErrorInfo("ResultNotKept", message))


def _snoozed(error: Snooze) -> Outcome:
    after = _bounded(error.after)
    if after is None or error.after < 0:
        return Raised(
            ErrorInfo("Snooze", f"a snooze needs a number of seconds, 0 or more, not {error.after!r}")
        )
    return Snoozed(after, str(error.reason))


def _bounded(seconds: Any) -> float | None:
    """A delay that the database can hold; None for what is no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        return None
    return min(max(float(seconds), 0.0), _LONGEST_DELAY_S)
