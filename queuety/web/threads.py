"""Threads for what blocks: the event loop never waits for the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from queuety.web.problems import busy

T = TypeVar("T")

WAIT_S = 5.0  # for a thread; who waits longer is told to come again


class Threads:
    """At most so many threads at a time; each uses at most one connection of the application's pool."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter: anyio.CapacityLimiter | None = None
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. Raises Problem 503 if none is free for WAIT_S seconds."""
        if self._limiter is None:  # here: it belongs to the running loop
            self._limiter = anyio.CapacityLimiter(self._most)
        limiter = self._limiter
        who = object()
        with anyio.move_on_after(WAIT_S) as patience:
            await limiter.acquire_on_behalf_of(who)
        if patience.cancelled_caught:
            raise busy("busy", f"all {self._most} places for requests have been in use for {WAIT_S:g} s")
        try:
            return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        finally:
            limiter.release_on_behalf_of(who)
