"""pgqueuer: asyncpg, uvloop, large batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers.driver import Driver, began, main

BATCH = 1000
CHUNK = 10_000


class PgqueuerDriver(Driver):
    package = "pgqueuer"
    settings = f"asyncpg, uvloop, batch_size={BATCH}, its autovacuum settings, durable"
    left = "SELECT id FROM pgqueuer ORDER BY id DESC LIMIT 1"

    async def open(self) -> None:
        self.connection: Any = await asyncpg.connect(self.url)
        self.queries: Any = Queries(AsyncpgDriver(self.connection))

    async def install(self) -> None:
        await self.open()
        await self.queries.install()
        await self.queries.optimize_autovacuum()

    async def clear(self) -> None:
        await self.connection.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics")

    async def load(self, jobs: int) -> None:
        async with self.connection.transaction():
            for start in range(0, jobs, CHUNK):
                size = min(CHUNK, jobs - start)
                await self.queries.enqueue(["noop"] * size, [b"{}"] * size, [0] * size)

    async def noop(self) -> None:
        await self.queries.enqueue("noop", b"{}", 0)

    async def stamp(self) -> None:
        await self.queries.enqueue("stamp", b"{}", 0)

    async def work(self, ready: Callable[[], None]) -> None:
        connection = await asyncpg.connect(self.url)
        queue = PgQueuer(AsyncpgDriver(connection))

        async def noop(job: object) -> None:
            pass

        async def stamp(job: object) -> None:
            began()

        queue.entrypoint("noop")(noop)
        queue.entrypoint("stamp")(stamp)
        ready()
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    main(PgqueuerDriver, uvloop.run)
