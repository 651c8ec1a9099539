"""CpuPool: run named functions in processes of their own, and never block the event loop for it."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
import weakref
from types import TracebackType
from typing import Any, Self

from queuety.cpu.call import prepare
from queuety.cpu.dispatcher import Dispatcher
from queuety.cpu.events import Callback, CpuEvent, Listeners
from queuety.errors import PoolStopped, UsageError, WorkerUnavailable

MOST_PROCESSES = 1024
_LONGEST_S = 10 * 365 * 86400.0
_EXIT_S = 3.0
_HASTE_S = 2.0  # for what still runs when an error, or Ctrl+C, leaves the block
_living: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class CpuPool:
    """Processes that run named functions.

    processes:    how many at most; default one less than the cores that this process may use, at least 1.
    max_restarts: crashed workers that are replaced, in all; with the next crash the pool is broken.
    max_waiting:  calls that may wait for a worker; None: any number.
    start_timeout: seconds within which a new worker must have come up; else it is killed, which counts as a crash.

    Nothing is started before the first call or `start()`; then workers come up as calls need them. May be used from
    any thread and any event loop of the process. Use it as a context manager, sync or async, or `stop()` it.
    If an error leaves the block, what still runs is killed after 2 s. A stopped pool cannot be entered again.
    """

    def __init__(
        self,
        processes: int | None = None,
        *,
        max_restarts: int = 5,
        max_waiting: int | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        if processes is None:
            processes = max(1, min(_cores() - 1, MOST_PROCESSES))
        self.processes = _whole("processes", processes, 1, MOST_PROCESSES)
        self.max_restarts = _whole("max_restarts", max_restarts, 0, 10**9)
        self.max_waiting = None if max_waiting is None else _whole("max_waiting", max_waiting, 0, 10**9)
        limit = _seconds("start_timeout", start_timeout)
        if limit is None:
            raise UsageError("start_timeout must be a number of seconds, not None")
        self.start_timeout = limit
        self._listeners = Listeners()
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._owner = 0  # the process whose pool this is, once started
        self._stopped = False

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, function: str, /, *args: Any, timeout: float | None = 60.0, **kwargs: Any) -> Any:
        """Run `module:function` with these arguments in a worker and return its result.

        timeout: seconds that the work may take, counted from its beginning in the worker; None: no limit.
        An error of the function is raised here as it was there, with the worker's traceback as its cause.
        Cancelled, a call that waits is withdrawn and one that runs is killed.
        Raises CallRefused, CallTimeout, WorkerCrashed, WorkerUnavailable, RemoteError, ResultRefused, PoolStopped,
        PoolBroken, PoolFull.
        """
        limit = _seconds("timeout", timeout)
        dispatcher = self._started()
        loop = asyncio.get_running_loop()
        try:  # in a thread: large arguments take their time
            preparing = loop.run_in_executor(dispatcher.clerks, prepare, function, args, kwargs, limit)
        except RuntimeError as error:
            if (refusal := dispatcher.refusal) is not None:
                raise refusal from error
            raise WorkerUnavailable(
                f"the CPU pool can start no thread now: {error}", "try again later"
            ) from error
        call = await preparing
        dispatcher.submit(call)
        try:
            answer = await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            dispatcher.withdraw(call)
            raise
        return answer.unwrap()

    def run_blocking(self, function: str, /, *args: Any, timeout: float | None = 60.0, **kwargs: Any) -> Any:
        """The same for code without an event loop: blocks this thread until the result is there."""
        _refuse_in_a_loop("run_blocking", "await pool.run(…)")
        limit = _seconds("timeout", timeout)
        dispatcher = self._started()
        self._refuse_in_a_callback("run_blocking")
        call = prepare(function, args, kwargs, limit)
        dispatcher.submit(call)
        try:
            answer = call.future.result()
        except BaseException:  # Ctrl+C, a time limit: whatever ends the waiting
            call.future.cancel()
            dispatcher.withdraw(call)
            raise
        return answer.unwrap()

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Bring all workers up now, and not one by one as calls come; returns at once."""
        self._started().start_all()
        return self

    async def stop(self, timeout: float | None = None) -> None:
        """Refuse new calls, fail those that wait, let those that run finish; then no process or thread is left.

        timeout: seconds after which what still runs is killed (its callers get PoolStopped); None: their own limits.
        May be called again and from several places; each waits for the end.
        """
        dispatcher = self._stop(timeout)
        if dispatcher is not None:
            await asyncio.shield(asyncio.wrap_future(dispatcher.ended))
            dispatcher.thread.join()

    def stop_blocking(self, timeout: float | None = None) -> None:
        """The same for code without an event loop."""
        _refuse_in_a_loop("stop_blocking", "await pool.stop()")
        self._refuse_in_a_callback("stop_blocking")
        dispatcher = self._stop(timeout)
        if dispatcher is not None:
            dispatcher.ended.result()
            dispatcher.thread.join()

    def __enter__(self) -> Self:
        _refuse_in_a_loop("with", "async with CpuPool() as pool:")
        self._refuse_another_life()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_blocking(None if kind is None else _HASTE_S)

    async def __aenter__(self) -> Self:
        self._refuse_another_life()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None if kind is None else _HASTE_S)

    # ── looks ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on(self, event: str, callback: Callback) -> None:
        """Call `callback(event)` at each event of this name: dispatch, done, fail, crash or stopped.

        It runs in the pool's own thread, which waits for it: be short, and hand over to an event loop by
        `loop.call_soon_threadsafe`. What it raises is logged.
        """
        self._listeners.add(event, callback)

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that are up or coming up."""
        return [worker.pid for worker in tuple(self._dispatcher.workers)] if self._dispatcher else []

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return self._dispatcher.waiting if self._dispatcher else 0

    @property
    def crashes(self) -> int:
        """Workers that have crashed so far."""
        return self._dispatcher.crashes if self._dispatcher else 0

    # ── below ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _started(self) -> Dispatcher:
        with self._lock:
            if self._stopped:
                raise PoolStopped("the CPU pool is stopped", "make a new one")
            if self._dispatcher is None:
                self._dispatcher = self._new_dispatcher()
                self._owner = os.getpid()
                _living.add(self._dispatcher)
                # Dropped without stop(), it ends all the same. (At the interpreter's end: see below.)
                weakref.finalize(self, _abandon, self._dispatcher, self._owner).atexit = False
            self._refuse_in_a_fork()
            return self._dispatcher

    def _new_dispatcher(self) -> Dispatcher:
        try:
            dispatcher = Dispatcher(
                self.processes, self.max_restarts, self.max_waiting, self.start_timeout, self._listeners
            )
            dispatcher.start()
        except (OSError, RuntimeError) as error:
            raise WorkerUnavailable(
                f"the CPU pool cannot be started now: {error}", "try again later"
            ) from error
        return dispatcher

    def _stop(self, timeout: float | None) -> Dispatcher | None:
        limit = _seconds("timeout", timeout, least=0.0)
        with self._lock:
            first, self._stopped = not self._stopped, True
            dispatcher = self._dispatcher
            if dispatcher is not None:
                self._refuse_in_a_fork()
        if dispatcher is not None:
            dispatcher.stop(limit)
        elif first:
            self._listeners.tell(CpuEvent("stopped"))
        return dispatcher

    def _refuse_another_life(self) -> None:
        if self._stopped:
            raise PoolStopped(
                "the CPU pool was stopped and cannot be entered again",
                "make a new one for each entry: in the lifespan, not when the module is imported",
            )

    def _refuse_in_a_fork(self) -> None:
        if self._owner != os.getpid():
            raise UsageError(
                f"this CPU pool was started in process {self._owner}, and this is {os.getpid()}, a fork of it",
                "make a pool, or make the first call, after the fork",
            )

    def _refuse_in_a_callback(self, what: str) -> None:
        if self._dispatcher is not None and threading.current_thread() is self._dispatcher.thread:
            raise UsageError(
                f"{what} in a callback of the pool would wait for itself", "do it in another thread"
            )


def _abandon(dispatcher: Dispatcher, owner: int) -> None:
    if os.getpid() == owner:  # else a fork: the workers are the parent's
        dispatcher.stop(0.0)


@atexit.register
def _at_exit() -> None:
    """Whoever ends without stop() leaves no process behind, and does not hang."""
    own = [dispatcher for dispatcher in tuple(_living) if dispatcher.owner == os.getpid()]
    for dispatcher in own:
        dispatcher.stop(0.0)
    for dispatcher in own:
        dispatcher.thread.join(_EXIT_S)


def _refuse_in_a_loop(what: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{what} would block the event loop that runs in this thread", f"use {instead}")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _seconds(name: str, value: object, least: float = math.ulp(0.0)) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _LONGEST_S:
        raise UsageError(
            f"{name} must be a number of seconds, {'0 or more' if least == 0 else 'more than 0'},"
            f" up to ten years, not {value!r}",
            "None means no limit",
        )
    return float(value)
