"""A pool under measurement."""

from __future__ import annotations

import os
import select
import time
from types import TracebackType
from typing import Self

import psutil

from bench.child import Child
from bench.common import BenchError, connect, until


class Pool:
    """`queuety work` with `workers` on the queue "default"; a context manager that stops it.

    All settings are the defaults, but that killed workers, being part of a figure, are not logged.

    Its handlers `stamp` and `die` tell when they begin: read it with `stamp()`. `busy` and `mark` write to the open
    file `ledger`.
    """

    def __init__(self, url: str, workers: int, *, ledger: int | None = None) -> None:
        self.url = url
        self.workers = workers
        self._stamps, write = os.pipe()
        kept = {"BENCH_STAMPS": write} | ({} if ledger is None else {"BENCH_LEDGER": ledger})
        self._rest = b""
        try:
            self.child = Child(
                "queuety.cli.main",
                *("--app", "bench.application:app", "--log-level", "error"),
                *("work", "--workers", str(workers)),
                url=url,
                extra={name: str(number) for name, number in kept.items()},
                pass_fds=[*kept.values()],
            )
        finally:
            os.close(write)
        self._conn = connect(url)

    def until_asleep(self) -> None:
        """Wait until every worker is ready and the pool sleeps."""

        def asleep() -> bool:
            self.child.check()
            row = self._conn.execute(
                """
                SELECT
                    (SELECT count(*) FROM queuety.workers AS w WHERE w.kind = 'worker'),
                    EXISTS (SELECT 1 FROM queuety.sleepers AS s)
                """
            ).fetchone()
            return row is not None and row[0] >= self.workers and row[1]

        until("a pool that sleeps", asleep)

    def stamp(self, limit_s: float = 60.0) -> tuple[int, int]:
        """(n, monotonic nanoseconds) of the next run that began."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._stamps], [], [], max(0.0, deadline - time.monotonic()))
            said = os.read(self._stamps, 65536) if ready else b""
            if not said:
                raise BenchError("a job has not begun in time")
            self._rest += said
        line, _, self._rest = self._rest.partition(b"\n")
        number, at = line.split()
        return int(number), int(at)

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """(supervisor, keeper or worker, process) of every process of the pool."""
        rows = self._conn.execute("SELECT w.pid, w.kind FROM queuety.workers AS w").fetchall()
        kinds = {int(pid): str(kind) for pid, kind in rows}
        own = psutil.Process(self.child.pid)
        below = own.children(recursive=True)
        return [("supervisor", own), *((kinds.get(one.pid, "other"), one) for one in below)]

    def backends(self) -> list[psutil.Process]:
        """The server processes behind the pool's connections."""
        rows = self._conn.execute(
            """
            SELECT a.pid
            FROM pg_stat_activity AS a
            WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
            """
        )
        return [psutil.Process(int(pid)) for (pid,) in rows]

    def hang_up(self) -> None:
        """Close the bench's own connection to the pool's database."""
        self._conn.close()

    def stop(self) -> None:
        self.child.stop()
        self._conn.close()
        os.close(self._stamps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
