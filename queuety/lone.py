"""A worker in the caller's own process, for tests and one-shot programs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queuety.errors import QueuetyError
from queuety.names import weighted_queues
from queuety.process import builtin
from queuety.process.ledger import Counter, Ledger, Mark, Phase
from queuety.process.plan import Mode, Plan
from queuety.process.worker import Worker
from queuety.store import bounded, claims, connect

if TYPE_CHECKING:
    from queuety.app import Queuety


@dataclass(frozen=True, slots=True)
class Ran:
    """How many jobs ended how."""

    completed: int
    retried: int
    buried: int
    cancelled: int
    snoozed: int

    @property
    def total(self) -> int:
        return self.completed + self.retried + self.buried + self.cancelled + self.snoozed


class LoneWorker:
    """Runs jobs in this process, by the same loop as the daemon.

    There is no supervisor: a time limit is raised in the main thread only and a handler may swallow it; a handler
    that kills the process kills the caller.
    """

    def __init__(self, app: Queuety, queues: str | Sequence[str]) -> None:
        self._app = app
        self._queues = weighted_queues(queues)

    def flush(self) -> Ran:
        """Run until nothing is due."""
        return self._run(Mode.FLUSH)

    def run_once(self) -> Ran:
        """Run one job, if one is due."""
        return self._run(Mode.ONCE)

    def _run(self, mode: Mode) -> Ran:
        app = self._app
        plan = Plan(
            url=app.url,
            queues=tuple(self._queues),
            weights=self._queues,
            load=lambda: app,
            settings=app.settings,
            name=socket.gethostname(),
            mode=mode,
        )
        page = Ledger(1).pages[0]
        page.pid = os.getpid()
        page.phase = Phase.BOOTING
        worker = Worker(plan, builtin.registry(app), page, lone=True)
        over = threading.Event()
        renewer = threading.Thread(
            target=_renew,
            args=(plan.url, worker, app.settings.stale_timeout, over),
            name="queuety-renewer",
            daemon=True,
        )
        try:
            worker.start()
            renewer.start()
            worker.loop()
        finally:
            over.set()
            worker.stop()
        counts = page.counts()
        return Ran(
            completed=counts[Counter.COMPLETED],
            retried=counts[Counter.RETRIED],
            buried=counts[Counter.BURIED],
            cancelled=counts[Counter.CANCELLED],
            snoozed=counts[Counter.SNOOZED],
        )


def _renew(url: str, worker: Worker, stale_s: float, over: threading.Event) -> None:
    """Renew the leases of long runs, in a thread: the handler has the main one, and nobody else does it."""
    page = worker.page
    conn: connect.Connection | None = None
    while not over.wait(stale_s / 4):
        held = [(job_id, page.lease) for _, job_id, mark in page.holdings() if mark is not Mark.SETTLED]
        if not held or time.monotonic() - page.claimed < stale_s / 4:
            continue
        try:
            conn = conn or connect.connect(url, name="queuety lone worker", patience_s=bounded.PATIENCE_S)
            asked = claims.renew(conn, held, stale_s)
            page.cancel = next((job_id for (job_id, _), cancel in asked.items() if cancel), 0)
        except (connect.Trouble, QueuetyError):
            conn = None
    if conn is not None:
        conn.close()
