"""`queuety scheduler`: a process that ticks and does nothing else.

The main thread waits for signals and never for the database, so it can always leave. The clock has a thread and the
one connection; an application's callbacks have another thread.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queuety.errors import QueuetyError
from queuety.listeners import Listeners
from queuety.process import declared
from queuety.process.callbacks import Callbacks
from queuety.process.ticker import Ticker
from queuety.process.titles import title
from queuety.process.wake import Waker
from queuety.store import bounded, connect, notices, schedules, workers

if TYPE_CHECKING:
    from queuety.model import NewSchedule

log = logging.getLogger("queuety.scheduler")

LOOK_S = 1.0  # between two looks when the next tick is due, should no notice have come
SEEN_S = 5.0  # between two signs of life; pools count on one that has shown life within SCHEDULER_SEEN_S
FORGET_S = 60.0
LEAVE_S, LAST_CALLS_S = 1.2, 0.5  # how long leaving waits for the database, and for callbacks
INTERRUPTED, FAILED = 130, 1
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
OTHERS = (signal.SIGHUP, signal.SIGUSR1)
DEAF = (
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR2,
)  # meant for pools; by themselves they would stop or end us


@dataclass(frozen=True, slots=True)
class Duty:
    """What a scheduler is to do.

    declared: schedules of the application `declared_by`, to be written at the start; None: it knows no application.
    silent_s: a process of the fleet that shows no life for so long is forgotten.  max_time_s: 0: no end.
    """

    url: str
    name: str
    declared: Sequence[NewSchedule] | None = None
    declared_by: str = ""
    silent_s: float = 180.0
    max_time_s: float = 0.0


class Scheduler:
    """The main thread's half: signals and the end."""

    def __init__(self, duty: Duty, listeners: Listeners | None = None) -> None:
        self._duty = duty
        self._callbacks = Callbacks(listeners or Listeners())
        self._clock = Clock(duty, self._callbacks)

    def run(self) -> int:
        """Tick until told to stop; returns the exit code. For the main thread."""
        waker = Waker((*STOPPING, *OTHERS))
        for number in DEAF:
            signal.signal(number, signal.SIG_IGN)
        waker.watch(self._clock.over_fd)
        title(f"scheduler {self._duty.name}"[:200])
        until = time.monotonic() + self._duty.max_time_s if self._duty.max_time_s else None
        self._clock.start()
        while True:
            signals, over = waker.wait(3600.0 if until is None else until - time.monotonic())
            for number in set(signals).intersection(OTHERS):
                self._on_other(number)
            stopping = [number for number in signals if number in STOPPING]
            if over:
                return FAILED
            if stopping or (until is not None and time.monotonic() >= until):
                why = stopping[0].name if stopping else f"{self._duty.max_time_s:g} s are over"
                return self._leave(waker, why, stopping)

    def _on_other(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            log.warning("SIGHUP: a scheduler does not load new code; restart it, no tick is lost by that")
        else:
            self._clock.report()

    def _leave(self, waker: Waker, why: str, signals: list[signal.Signals]) -> int:
        """Let the clock and the callbacks come to their end, for a moment; a second signal does not wait for them."""
        log.info("stopping: %s", why)
        code = 0
        self._clock.stop()
        until = time.monotonic() + LEAVE_S
        while (left := until - time.monotonic()) > 0:
            more, over = waker.wait(left)
            signals += [number for number in more if number in STOPPING]
            if signals.count(signal.SIGINT) > 1:
                code = INTERRUPTED
            if over or len(signals) > 1:
                break
        if len(signals) < 2:
            self._callbacks.close(LAST_CALLS_S)
        return code


class Clock:
    """The database's half: look, fire, follow, through whatever the database does meanwhile."""

    def __init__(self, duty: Duty, callbacks: Callbacks) -> None:
        self._duty = duty
        self._callbacks = callbacks
        self._ticker = Ticker(own=True)
        self._conn: bounded.Bounded | None = None
        self._listens = False
        self._id = 0
        self._told = False
        self._report = False
        self._look_at = self._seen_at = self._forget_at = self._retry_at = 0.0
        self._pause = 0.1
        self._lost_before = False
        self._stopping = False
        self._stop_read, self._stop_write = os.pipe()
        self.over_fd, self._over_write = os.pipe()
        os.set_blocking(self._stop_write, False)
        self._thread = threading.Thread(target=self._run, name="queuety-clock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Have it end; `over_fd` can be read then."""
        self._stopping = True
        self._rouse()

    def report(self) -> None:
        """Have it log how things stand."""
        self._report = True
        self._rouse()

    def _rouse(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._stop_write, b".")

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._with_database(time.monotonic())
                self._callbacks.mind()
                self._wait()
            self._farewell()
        except BaseException:
            log.exception("the scheduler ended by an error")
        finally:
            os.write(self._over_write, b".")

    def _with_database(self, now: float) -> None:
        """Do all that is due; whatever fails for want of the database is due again when it is back."""
        if now < self._retry_at:
            return
        try:
            conn = self._connection()
            if self._listens:
                notices.take_in(conn, self._on_notice)
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                self._ticker.look(conn)
            if now >= self._ticker.at:
                self._ticker.act(conn, now, self._callbacks.tell)
            if now >= self._seen_at:
                self._seen_at = now + SEEN_S
                if workers.seen(conn, [self._id]):
                    self._restore(conn)
            if now >= self._forget_at:
                self._forget_at = now + FORGET_S
                workers.forget_silent(conn, self._duty.silent_s)
            if self._report or not self._told:
                self._report, self._told = False, True
                log.info("scheduler %s: %s", self._duty.name, _standing(schedules.standing(conn)))
            if self._lost_before:
                log.info("the database is back")
            self._lost_before, self._pause = False, 0.1
        except (connect.Trouble, QueuetyError) as error:
            if connect.again(error):
                self._retry_at = now + 0.05 * (0.5 + random.random())
            else:
                self._lose(error)

    def _connection(self) -> bounded.Bounded:
        if self._conn is None:
            conn = connect.connect(
                self._duty.url, name=f"queuety scheduler {self._duty.name}", patience_s=bounded.PATIENCE_S
            )
            try:
                if self._duty.declared is not None and not self._id:
                    declared.write(conn, self._duty.declared, self._duty.declared_by)
                if not self._id:
                    self._id = workers.register(conn, "scheduler", self._duty.name, (), None, os.getpid())
                connect.pin(conn)
                self._listens = notices.listen(conn, self._on_notice)
            except BaseException:
                conn.close()
                raise
            self._conn = conn
            self._look_at = self._seen_at = 0.0  # first of all look, and show life
        return self._conn

    def _restore(self, conn: connect.Connection) -> None:
        """Register again: others have forgotten us while we were cut off from the database."""
        own = os.getpid()
        workers.restore(conn, "scheduler", self._duty.name, (), None, own, {self._id: own})

    def _on_notice(self, payload: str) -> None:
        if payload.startswith("s:"):
            self._look_at = 0.0

    def _lose(self, error: BaseException) -> None:
        if not self._lost_before:
            log.warning("lost the database: %s", connect.unreachable(error).message)
        self._lost_before = True
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(connect.Trouble):
                conn.close()
        self._retry_at = time.monotonic() + self._pause * (0.5 + random.random())
        self._pause = min(self._pause * 2, 5.0)

    def _wait(self) -> None:
        """Sleep until something is due, a notice comes or somebody wants something."""
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN)
        due = self._retry_at
        if self._conn is not None:
            with suppress(connect.Trouble):  # broken: the next statement tells
                poll.register(self._conn.fileno(), select.POLLIN)
            due = max(due, min(self._look_at, self._ticker.at))
        # Rounded up: a wait that ends a little early would only be repeated.
        left = int(max(0.0, min(due - time.monotonic(), LOOK_S)) * 1000 + 0.999)
        if any(fd == self._stop_read for fd, _ in poll.poll(left)):
            os.read(self._stop_read, 4096)

    def _farewell(self) -> None:
        if self._conn is not None:
            with suppress(connect.Trouble):
                workers.unregister(self._conn, [self._id])
                self._conn.close()


def _standing(found: schedules.Standing) -> str:
    text = f"{found.active} schedule{'' if found.active == 1 else 's'}"
    if found.next_at is not None:
        text += f", the next tick at {found.next_at.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    return text + (f", {len(found.broken)} broken" if found.broken else "")
