"""Viewers: the streams of some jobs as an iterator, for threads and for event loops."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType

from queuety.errors import UsageError
from queuety.model import StreamEvent
from queuety.store.search import check_id
from queuety.units import shown
from queuety.watching.listener import Listener, Watch
from queuety.watching.place import Cursor

After = str | Mapping[int, str] | None


def cursors(job_ids: Iterable[int], after: After) -> dict[int, Cursor]:
    """Where a viewer of these jobs begins. Raises UsageError for what is no id of a job or of an event.

    after: the id of the last event that it has seen, of one job; or such ids by job.
    """
    ids = list(dict.fromkeys(check_id(job_id) for job_id in job_ids))
    if isinstance(after, Mapping):
        if strangers := [job_id for job_id in after if job_id not in ids]:
            raise UsageError(f"after= names {shown(strangers[0])}, which is none of the jobs", "leave it out")
        return {job_id: Cursor.after(after.get(job_id)) for job_id in ids}
    if after and len(ids) > 1:
        raise UsageError(
            f"after={shown(after)} is the place in one stream, and there are {len(ids)}",
            "give a mapping from the jobs' ids to the ids of their last events",
        )
    return {job_id: Cursor.after(after) for job_id in ids}


class _Viewer:
    """What both kinds share. The listener knows the watch only, so that a viewer that is dropped leaves nothing."""

    def __init__(self, listener: Listener, watch: Watch) -> None:
        self._listener = listener
        self._watch = watch
        self._finalizer = weakref.finalize(self, listener.drop, watch)
        self._finalizer.atexit = False

    def _take(self) -> StreamEvent | None:
        if self._listener.pid != os.getpid():
            raise UsageError("this stream was opened before a fork", "open it in the process that reads it")
        return self._listener.take(self._watch)

    def _close(self) -> None:
        if self._finalizer.detach() and self._listener.pid == os.getpid():
            self._listener.leave(self._watch)


class Stream(_Viewer):
    """Events of jobs, as an iterator that waits for the next one; ends after the final event of the last job.

    One thread at a time. Use it as a context, or close it, to leave before the end.
    """

    def __init__(self, listener: Listener, wanted: Mapping[int, Cursor]) -> None:
        self._something = threading.Event()
        super().__init__(listener, listener.watch(wanted, self._something.set))

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> StreamEvent:
        while True:
            self._something.clear()
            event = self._take()
            if event is not None:
                return event
            self._something.wait()

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


class AsyncStream(_Viewer):
    """As Stream, for an event loop: nothing of it blocks, and a read that is cancelled loses no event."""

    def __init__(self, listener: Listener, wanted: Mapping[int, Cursor]) -> None:
        self._something = asyncio.Event()
        super().__init__(listener, listener.watch(wanted, _waker(self._something)))

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> StreamEvent:
        # Or a long history would keep the loop, and be written on to somebody whose leaving nobody could notice.
        await asyncio.sleep(0)
        while True:
            self._something.clear()
            try:
                event = self._take()
            except StopIteration:
                raise StopAsyncIteration from None
            if event is not None:
                return event
            await self._something.wait()

    async def aclose(self) -> None:
        self._close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


class _waker:  # noqa: N801 - a function with two values
    """Sets an event of the loop that is running, from another thread."""

    def __init__(self, something: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._something = something

    def __call__(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._something.set)
