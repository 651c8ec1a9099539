"""chancy: asynchronous jobs, many at once, polling again as soon as a job ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chancy

from bench.peers.driver import Driver, began, main

CONCURRENCY, CHUNK = 500, 5_000


async def _noop() -> None:
    pass


async def _stamp() -> None:
    began()


NOOP: Any = chancy.job()(_noop)
STAMP: Any = chancy.job()(_stamp)


class ChancyDriver(Driver):
    package = "chancy"
    settings = f"AsyncExecutor, concurrency={CONCURRENCY}, eager_polling"
    left = "SELECT id FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying') LIMIT 1"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.app: Any = chancy.Chancy(url)

    async def open(self) -> None:
        await self.app.__aenter__()

    async def close(self) -> None:
        await self.app.__aexit__(None, None, None)

    async def install(self) -> None:
        await self.open()
        await self.app.migrate()
        await self.app.declare(
            chancy.Queue(
                "default",
                concurrency=CONCURRENCY,
                executor="chancy.executors.asyncex.AsyncExecutor",
                eager_polling=True,
            )
        )
        await self.close()

    async def clear(self) -> None:
        async with self.app.pool.connection() as conn:
            await conn.execute("TRUNCATE chancy_jobs")

    async def load(self, jobs: int) -> None:
        async for _ in self.app.push_many([NOOP.job] * jobs, batch_size=CHUNK):
            pass

    async def noop(self) -> None:
        await self.app.push(NOOP)

    async def stamp(self) -> None:
        await self.app.push(STAMP)

    async def work(self, ready: Callable[[], None]) -> None:
        await self.open()
        ready()
        async with chancy.Worker(self.app) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancyDriver)
