"""How jobs stand, asked for many streams in one query: a thousand clients that come back at once cost a few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from queuety.model import State
from queuety.store import latest
from queuety.store.connect import Connection

Found: TypeAlias = Mapping[int, State]
Look: TypeAlias = Callable[[Callable[[Connection], Found]], Awaitable[Found]]

MOST = 1000  # ids of one query, exceeded by those of one stream at most


class States:
    """Answers who asks while a query runs with the next one, all together. In one event loop."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._waiting: list[tuple[Sequence[int], asyncio.Future[Found]]] = []
        self._turn: asyncio.Task[None] | None = None

    async def of(self, job_ids: Sequence[int]) -> Found:
        """The states of those of these jobs that are there."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[Found] = loop.create_future()
        self._waiting.append((job_ids, mine))
        if self._turn is None or self._turn.done() or self._turn.get_loop() is not loop:
            self._turn = loop.create_task(self._take_turns())
        found = await mine
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    async def _take_turns(self) -> None:
        while self._waiting:
            wanted: set[int] = set()
            asking: list[asyncio.Future[Found]] = []
            while self._waiting and len(wanted) < MOST:
                job_ids, one = self._waiting.pop(0)
                wanted.update(job_ids)
                asking.append(one)
            try:
                found = await self._look(partial(_read, sorted(wanted)))
            except Exception as error:  # noqa: BLE001 - each of them is told
                _end(asking, error)
            except BaseException:
                _end(asking, asyncio.CancelledError())
                raise
            else:
                _end(asking, found)


def _read(job_ids: Sequence[int], conn: Connection) -> Found:
    return latest.states(conn, job_ids)


def _end(asking: list[asyncio.Future[Found]], outcome: Found | BaseException) -> None:
    for one in asking:
        if one.done():  # its client has gone
            continue
        if isinstance(outcome, BaseException):
            one.set_exception(outcome) if isinstance(outcome, Exception) else one.cancel()
        else:
            one.set_result(outcome)
