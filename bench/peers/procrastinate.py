"""procrastinate: asynchronous jobs, many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.driver import Driver, began, main

CONCURRENCY, CHUNK = 20, 5_000


class ProcrastinateDriver(Driver):
    package = "procrastinate"
    settings = f"async jobs, concurrency={CONCURRENCY}, delete_jobs=always"
    left = "SELECT id FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.app: Any = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=CONCURRENCY + 2))

        async def noop() -> None:
            pass

        async def stamp() -> None:
            began()

        self.noops: Any = self.app.task(name="noop")(noop)
        self.stamps: Any = self.app.task(name="stamp")(stamp)

    async def open(self) -> None:
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def install(self) -> None:
        await self.open()
        await self.app.schema_manager.apply_schema_async()
        await self.close()

    async def clear(self) -> None:
        await self.app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")

    async def load(self, jobs: int) -> None:
        for start in range(0, jobs, CHUNK):
            await self.noops.batch_defer_async(*[{}] * min(CHUNK, jobs - start))

    async def noop(self) -> None:
        await self.noops.defer_async()

    async def stamp(self) -> None:
        await self.stamps.defer_async()

    async def work(self, ready: Callable[[], None]) -> None:
        await self.open()
        ready()
        await self.app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always")


if __name__ == "__main__":
    main(ProcrastinateDriver)
