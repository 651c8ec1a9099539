"""Callbacks of schedules' events, called where what they do cannot delay a tick."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque

from queuety.listeners import Callback, Listeners
from queuety.model import ScheduleEvent, Tick

log = logging.getLogger("queuety.scheduler")

MOST_WAITING = 10_000  # calls; what happens while so many wait is not told
LONGEST_S = 60.0  # a call that takes longer is left behind
MOST_HUNG = 4  # calls left behind at a time; with so many nothing is told until one of them ends


def event_of(tick: Tick) -> ScheduleEvent | None:
    """What is told of a tick that has run, was skipped or failed, or whose job has ended; None: nothing."""
    told = {"schedule": tick.schedule, "at": tick.at, "job_id": tick.job_id}
    match tick.ended or tick.kind:
        case "done":
            return ScheduleEvent("done", **told)  # type: ignore[arg-type]
        case "fail" if tick.ended:
            reason = str((tick.error or {}).get("message") or "the job failed")
            return ScheduleEvent("fail", **told, reason=reason, error=tick.error, phase="run")  # type: ignore[arg-type]
        case "fail":
            phase, _, reason = (tick.reason or "").partition(": ")
            return ScheduleEvent("fail", **told, reason=reason, phase=phase)  # type: ignore[arg-type]
        case "run" | "skip" as kind:
            more = {"reason": tick.reason, "through": tick.through, "ticks": tick.ticks}
            return ScheduleEvent(kind, **told, **more)  # type: ignore[arg-type]
    return None  # the job was deleted before anybody looked how it ended


class Callbacks:
    """Calls in the order of the events, one at a time, in a thread of their own."""

    def __init__(self, listeners: Listeners, *, longest_s: float = LONGEST_S) -> None:
        self._listeners = listeners
        self._longest_s = longest_s
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callback, ScheduleEvent]] = deque()
        self._thread: threading.Thread | None = None
        self._hung: list[threading.Thread] = []
        self._call: tuple[float, str] | None = None  # since when the thread is in which callback
        self._untold = 0

    def tell(self, tick: Tick) -> None:
        """Have the callbacks of a tick's event called soon. Does not wait."""
        event = event_of(tick)
        calls = [(one, event) for one in self._listeners.of(event.kind)] if event else []
        if not calls:
            return
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                if not self._untold:
                    log.error("%d calls of callbacks wait: further events are not told", len(self._waiting))
                self._untold += len(calls)
                return
            if self._untold:
                log.error("callbacks are behind: %d calls were left out", self._untold)
                self._untold = 0
            self._waiting.extend(calls)
            self._start()
            self._changed.notify_all()

    def mind(self) -> None:
        """Leave a call behind that takes too long. To be called now and then."""
        with self._changed:
            self._hung = [one for one in self._hung if one.is_alive()]
            if self._call and time.monotonic() - self._call[0] > self._longest_s and self._thread:
                log.error("the callback %s has not returned for %g s", self._call[1], self._longest_s)
                self._hung.append(self._thread)
                self._thread = self._call = None
            if self._waiting:
                self._start()

    def close(self, seconds: float) -> None:
        """Wait for the calls that are due, but no longer than that."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting and not self._call, seconds):
                left = len(self._waiting) + bool(self._call)
                log.warning("%d calls of callbacks are left out or cut", left)

    def _start(self) -> None:
        if self._thread is None and len(self._hung) < MOST_HUNG:
            self._thread = threading.Thread(target=self._work, name="queuety-callbacks", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        own = threading.current_thread()
        while True:
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._thread is not own)
                if self._thread is not own:
                    return
                callback, event = self._waiting.popleft()
                self._call = time.monotonic(), getattr(callback, "__qualname__", repr(callback))
            try:
                answer = callback(event)
                if inspect.iscoroutine(answer):
                    asyncio.run(answer)
            except BaseException:
                log.exception("a callback of the event %r of schedule %s failed", event.kind, event.schedule)
            with self._changed:
                if self._thread is own:
                    self._call = None
