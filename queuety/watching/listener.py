"""The listener: one thread and one connection, for all that a process watches.

It reads on for those viewers that have nothing left to show, all in one statement, and once for all that are at the
same place. It looks when it is notified, and every half a second for what nobody has told; not at all while nobody
watches. A viewer holds one page at most: one that is slow is read for when it asks, from where it is.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import selectors
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice

from queuety.errors import DatabaseUnreachable, JobNotFound, QueuetyError
from queuety.model import StreamEvent
from queuety.store import bounded, connect, notices
from queuety.store import watching as store
from queuety.watching.place import Cursor
from queuety.watching.stream import Page, compose

log = logging.getLogger("queuety.watching")

POLL_S = 0.5
GAP_S = 0.02  # between two looks: what comes within is read at once
SHARE = 10  # a look at everything takes no more than one part in so many of the time
LASTING_S = 180.0  # a registration lapses after so long, should this process be killed
RENEW_S = 60.0
LINGER_S = 2.0  # the connection is kept for so long after the last viewer
READERS = 500  # places read on from in one statement
FULL = 200  # events that a viewer of many jobs is handed at a time

_Wanted = dict[tuple[int, Cursor], list["Watch"]]


class Watch:
    """What one viewer watches; under the listener's lock.

    cursors: how far it has read, by job; a job whose stream is over is not there.  inbox: events for it to take.
    wake: called when there is something to take, from the listener's thread.
    """

    def __init__(self, cursors: Mapping[int, Cursor], wake: Callable[[], None]) -> None:
        self.cursors = dict(cursors)
        self.inbox: deque[StreamEvent] = deque()
        self.error: Exception | None = None
        self.wake = wake
        self.due = dict.fromkeys(cursors)  # jobs that there may be something to read of
        self.unknown = set(cursors)  # jobs not looked at yet


class Listener:
    """Watches jobs for the viewers of this process. Belongs to the process that made it."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self._url = url
        self._channel = f"queuety_{uuid.uuid4().hex}"
        self._watches: dict[int, dict[Watch, None]] = {}  # by job
        self._asking: dict[Watch, None] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._bell: _Bell | None = None  # of the thread
        self._dropped: deque[Watch] = deque()

    # ── viewers ───────────────────────────────────────────────────────────────────────────────────

    def watch(self, cursors: Mapping[int, Cursor], wake: Callable[[], None]) -> Watch:
        """Watch jobs for a viewer that has read so far, until `leave`."""
        watch = Watch(cursors, wake)
        with self.lock:
            if self._closed:
                watch.error = _closed()
                return watch
            for job_id in watch.cursors:
                self._watches.setdefault(job_id, {})[watch] = None
            if watch.cursors:
                self._asking[watch] = None
                self._start()
        self._ring()
        return watch

    def take(self, watch: Watch) -> StreamEvent | None:
        """The next event for a viewer; None if it has to wait for `wake`.

        Raises StopIteration after the last one, or what has kept the listener from reading on.
        """
        with self.lock:
            if watch.inbox:
                return watch.inbox.popleft()
            if watch.error is not None:
                raise watch.error
            if not watch.cursors:
                raise StopIteration
            self._asking[watch] = None
            due = bool(watch.due)
        if due:
            self._ring()
        return None

    def leave(self, watch: Watch) -> None:
        """Watch for this viewer no more."""
        with self.lock:
            self._leave(watch)
            alone = not self._watches
        if alone:
            self._ring()

    def drop(self, watch: Watch) -> None:
        """As `leave`, but soon, and without waiting for the lock: the garbage collector may be the caller."""
        self._dropped.append(watch)
        self._ring()

    def close(self) -> None:
        """End the thread and the connection; viewers are told."""
        if self.pid != os.getpid():
            return
        with self.lock:
            self._closed = True
            thread = self._thread
        self._fail_all(_closed())
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _leave(self, watch: Watch) -> None:
        for job_id in watch.cursors:
            self._forget(job_id, watch)
        watch.cursors.clear()
        watch.inbox.clear()
        self._asking.pop(watch, None)

    def _forget(self, job_id: int, watch: Watch) -> None:
        watches = self._watches.get(job_id)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._watches[job_id]

    def _start(self) -> None:
        if self._thread is None:
            self._bell = _Bell()
            self._thread = threading.Thread(
                target=self._run, args=[self._bell], name="queuety listener", daemon=True
            )
            self._thread.start()
            atexit.register(self.close)

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self, bell: _Bell) -> None:
        pause = 0.1
        while True:
            session: _Session | None = None
            try:
                session = _Session(self._url(), self._channel, self._heard, bell)
                with self.lock:
                    self._mark_all()
                pause = 0.1
                self._serve(session)
            except connect.TROUBLE as error:
                self._in_trouble(error)
            except Exception as error:
                log.exception("the listener failed")
                self._fail_all(error)  # or viewers would wait for a thread that is gone
            finally:
                if session is not None:
                    session.close()
            if self._over():
                return
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 5.0)

    def _in_trouble(self, error: Exception) -> None:
        """Tell viewers if there is no hope; and those that have seen nothing yet of a database that is away."""
        if connect.lost(error):
            log.warning("cannot read on in streams: %s", connect.unreachable(error).message)
            self._fail_all(connect.unreachable(error), only_new=True)
        elif isinstance(error, connect.Trouble) and not connect.again(error):
            self._fail_all(connect.translate(error))

    def _serve(self, session: _Session) -> None:
        """Read on for viewers, until there have been none for a while."""
        polled = looked = left = -math.inf
        every = POLL_S
        while True:
            now = time.monotonic()
            with self.lock:
                self._tidy()
                watched = list(self._watches)
                polling = now - polled >= every
                if polling:
                    self._mark_all()
                ready = any(watch.due for watch in self._asking)
                if self._closed:
                    return
            if not watched:
                session.keep([])
                left = now if left == -math.inf else left
                if now - left >= LINGER_S:
                    return
                session.wait(left + LINGER_S - now)
                continue
            left = -math.inf
            if ready and now - looked < GAP_S:
                time.sleep(looked + GAP_S - now)
            if polling:
                polled = now
            if ready:
                begun = time.monotonic()
                self._read(session)
                looked = time.monotonic()
                if polling:
                    every = max(POLL_S, SHARE * (looked - begun))
            self._register(session)
            session.wait(0.0 if self._ready() else max(0.0, polled + every - time.monotonic()))

    def _register(self, session: _Session) -> None:
        """Be told of what is watched. What has happened before has told nobody: it is looked at once more."""
        with self.lock:
            watched = list(self._watches)
        added = session.keep(watched)
        with self.lock:
            self._mark(added)

    def _ready(self) -> bool:
        with self.lock:
            return any(watch.due for watch in self._asking)

    def _over(self) -> bool:
        """End the thread if nobody watches."""
        with self.lock:
            self._tidy()
            if self._watches and not self._closed:
                return False
            self._thread = None
            if self._bell is not None:
                self._bell.close()
            self._bell = None
        atexit.unregister(self.close)
        return True

    def _tidy(self) -> None:
        while self._dropped:
            self._leave(self._dropped.popleft())

    def _heard(self, payload: str) -> None:
        if payload.isdecimal():
            with self.lock:
                self._mark([int(payload)])

    def _mark(self, job_ids: list[int]) -> None:
        for job_id in job_ids:
            for watch in self._watches.get(job_id, ()):
                watch.due[job_id] = None

    def _mark_all(self) -> None:
        for watch in self._asking:
            watch.due.update(dict.fromkeys(watch.cursors))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def _read(self, session: _Session) -> None:
        """Read on for all viewers that ask, from each place once."""
        with self.lock:
            wanted: _Wanted = {}
            for watch in self._asking:
                for job_id in watch.due:
                    if job_id in watch.cursors:
                        wanted.setdefault((job_id, watch.cursors[job_id]), []).append(watch)
                watch.due.clear()
        try:
            for part in _parts(wanted):
                for (job_id, cursor), page in zip(part, session.pages(part), strict=True):
                    self._hand_out(job_id, cursor, page, wanted[job_id, cursor])
                    wanted.pop((job_id, cursor))
        finally:
            with self.lock:  # what could not be read is still due
                for (job_id, _), watches in wanted.items():
                    for watch in watches:
                        watch.due[job_id] = None

    def _hand_out(self, job_id: int, cursor: Cursor, page: Page, watches: list[Watch]) -> None:
        """Give a page to the viewers that are at its beginning."""
        woken = []
        with self.lock:
            for watch in watches:
                if watch.cursors.get(job_id) != cursor:
                    continue  # it has left
                if page.missing and cursor == Cursor() and job_id in watch.unknown:
                    self._fail(watch, JobNotFound(f"there is no job {job_id}", "it may have been deleted"))
                elif page.events and len(watch.inbox) >= FULL:
                    watch.due[job_id] = None
                else:
                    self._give(job_id, page, watch)
                if watch.inbox or watch.error or not watch.cursors:
                    self._asking.pop(watch, None)
                    woken.append(watch)
        for watch in woken:
            watch.wake()

    def _give(self, job_id: int, page: Page, watch: Watch) -> None:
        watch.inbox.extend(page.events)
        watch.unknown.discard(job_id)
        if page.over:
            del watch.cursors[job_id]
            self._forget(job_id, watch)
            return
        watch.cursors[job_id] = page.cursor
        if page.more:
            watch.due[job_id] = None

    def _fail(self, watch: Watch, error: Exception) -> None:
        watch.error = watch.error or error
        for job_id in watch.cursors:
            self._forget(job_id, watch)
        watch.cursors.clear()
        self._asking.pop(watch, None)

    def _fail_all(self, error: Exception, *, only_new: bool = False) -> None:
        """Tell viewers that there is nothing more to read; only_new: those that have seen nothing yet."""
        with self.lock:
            watches = {watch: None for those in self._watches.values() for watch in those}
            told = [watch for watch in watches if not only_new or len(watch.unknown) == len(watch.cursors)]
            for watch in told:
                self._fail(watch, error)
        for watch in told:
            watch.wake()


class _Bell:
    """Wakes the thread while it waits."""

    def __init__(self) -> None:
        self.near, self._far = socket.socketpair()
        self.near.setblocking(False)
        self._far.setblocking(False)

    def ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: the thread has gone
            self._far.send(b".")

    def hush(self) -> None:
        with suppress(BlockingIOError):
            while self.near.recv(4096):
                pass

    def close(self) -> None:
        self.near.close()
        self._far.close()


class _Session:
    """The listener's connection, what it is registered for, and what it waits on."""

    def __init__(self, url: str, channel: str, heard: Callable[[str], None], bell: _Bell) -> None:
        self._channel = channel
        self._heard = heard
        self._bell = bell
        self._registered: set[int] = set()
        self._renewed = time.monotonic()
        self._conn = connect.connect(url, name="queuety listener", patience_s=bounded.PATIENCE_S)
        try:
            self._hints = store.listen(self._conn, channel, heard)
        except connect.Trouble as error:
            if not connect.refused(error):
                self._conn.close()
                raise
            self._hints = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell.near, selectors.EVENT_READ)
        if self._hints:
            self._selector.register(self._conn.fileno(), selectors.EVENT_READ)

    def pages(self, wanted: list[tuple[int, Cursor]]) -> list[Page]:
        """Read on from each place."""
        glimpses = store.look(self._conn, [(job_id, cursor.read) for job_id, cursor in wanted])
        return [compose(*place, glimpse) for place, glimpse in zip(wanted, glimpses, strict=True)]

    def keep(self, watched: list[int]) -> list[int]:
        """Be registered for these jobs and no others; returns those that were not."""
        if not self._hints:
            return []
        wanted = set(watched)
        added, gone = wanted - self._registered, self._registered - wanted
        now = time.monotonic()
        try:
            if now - self._renewed > RENEW_S:
                self._renewed = now
                store.forget_lapsed(self._conn)
                store.register(self._conn, self._channel, sorted(wanted), LASTING_S)
            elif added:
                store.register(self._conn, self._channel, sorted(added), LASTING_S)
            if gone:
                store.deregister(self._conn, self._channel, sorted(gone))
        except connect.Trouble as error:
            if not connect.refused(error):
                raise
            log.info("not notified of what happens to jobs, looking for it instead: %s", error)
            self._hints = False
            self._selector.unregister(self._conn.fileno())
            return []
        self._registered = wanted
        return sorted(added)

    def wait(self, seconds: float) -> None:
        """Wait until the bell rings or a notification comes."""
        self._selector.select(seconds)
        self._bell.hush()
        if self._hints:
            notices.take_in(self._conn, self._heard)

    def close(self) -> None:
        self._selector.close()
        with suppress(connect.Trouble):
            if self._registered and not self._conn.closed:
                store.deregister(self._conn, self._channel)
        self._conn.close()


def _parts(wanted: _Wanted) -> list[list[tuple[int, Cursor]]]:
    places = iter(list(wanted))
    parts = []
    while part := list(islice(places, READERS)):
        parts.append(part)
    return parts


def _closed() -> QueuetyError:
    return DatabaseUnreachable("the application was closed while a stream was open", "open another one")
