"""oban: one process for each worker, uvloop, many jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop
from oban import Oban, job
from oban.schema import install

from bench.peers.driver import Driver, began, main

LIMIT, CHUNK = 100, 5_000


async def _noop() -> None:
    pass


async def _stamp() -> None:
    began()


NOOP: Any = job(queue="default")(_noop)
STAMP: Any = job(queue="default")(_stamp)


class ObanDriver(Driver):
    package = "oban"
    settings = f"uvloop, limit={LIMIT}"
    left = "SELECT id FROM oban_jobs WHERE state IN ('available', 'executing') LIMIT 1"

    async def open(self) -> None:
        self.pool: Any = await Oban.create_pool(self.url)
        self.oban: Any = Oban(pool=self.pool)

    async def close(self) -> None:
        await self.pool.close()

    async def install(self) -> None:
        await self.open()
        await install(self.pool)
        await self.close()

    async def clear(self) -> None:
        async with self.pool.connection() as conn:
            await conn.execute("TRUNCATE oban_jobs")

    async def load(self, jobs: int) -> None:
        for start in range(0, jobs, CHUNK):
            await self.oban.enqueue_many([NOOP.new() for _ in range(min(CHUNK, jobs - start))])

    async def noop(self) -> None:
        await self.oban.enqueue(NOOP.new())

    async def stamp(self) -> None:
        await self.oban.enqueue(STAMP.new())

    async def work(self, ready: Callable[[], None]) -> None:
        pool = await Oban.create_pool(self.url)
        own = Oban(pool=pool, queues={"default": LIMIT})
        ready()
        async with own:
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(ObanDriver, uvloop.run)
