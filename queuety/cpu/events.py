"""What a CPU pool tells: its events, and those who listen."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass

from queuety.errors import UsageError

log = logging.getLogger("queuety.cpu")

EVENTS = ("dispatch", "done", "fail", "crash", "stopped")


@dataclass(frozen=True)
class CpuEvent:
    """Something that happened in a CPU pool.

    type:     dispatch (the work began), done, fail, crash (a worker died), stopped (the pool has ended).
    call:     number of the call in this process; None if it is about no call.
    function: its name.  pid: the worker's process.
    seconds:  from the beginning of the work; None if it had not begun.
    error:    what went wrong, in one line.
    """

    type: str
    call: int | None = None
    function: str | None = None
    pid: int | None = None
    seconds: float | None = None
    error: str | None = None


Callback = Callable[[CpuEvent], object]


class Listeners:
    """The callbacks of each event."""

    def __init__(self) -> None:
        self._of: dict[str, list[Callback]] = {name: [] for name in EVENTS}

    def add(self, event: str, callback: Callback) -> None:
        if event not in self._of:
            near = difflib.get_close_matches(str(event), EVENTS, 1)
            raise UsageError(
                f"a CPU pool has no event {event!r}",
                f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}",
            )
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            raise UsageError(
                f"the callback of {event!r} must be a plain function, not {callback!r}",
                "hand over to your event loop by loop.call_soon_threadsafe",
            )
        self._of[event].append(callback)

    def tell(self, event: CpuEvent) -> None:
        """Call those who listen, in order; what one raises is logged and harms nobody."""
        for callback in tuple(self._of[event.type]):
            try:
                callback(event)
            except BaseException:
                log.exception("a callback of the event %r failed", event.type)
