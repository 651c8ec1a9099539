"""The link from a run's context to the worker that runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from queuety.context import RunningJob
from queuety.errors import LeaseLost, UsageError
from queuety.model import Complete, Outcome, Priority, Returned
from queuety.payload import dumps
from queuety.process.ledger import Mark
from queuety.store import claims, connect, events
from queuety.store.batch import Batch, settle
from queuety.store.claims import Claimed
from queuety.store.connect import Connection

if TYPE_CHECKING:
    from queuety.process.worker import Worker

log = logging.getLogger("queuety.worker")


class RunLink:
    """What one run's context may ask of its worker. settled: the job was completed by its own transaction."""

    def __init__(self, worker: Worker, job: Claimed) -> None:
        self._worker = worker
        self._claimed = job
        self.settled = False
        self._open = False
        self.job = RunningJob(
            id=job.id,
            handler=job.handler,
            queue=job.queue,
            priority=Priority(job.priority),
            attempt=job.attempts,
            max_attempts=job.max_attempts,
            tags=tuple(job.tags or ()),
            enqueued_at=datetime.fromtimestamp(job.created_at, UTC),
            available_at=datetime.fromtimestamp(job.available_at, UTC),
        )

    def cancel_asked(self) -> bool:
        """True once somebody has asked to cancel the job; notes that the handler cooperates."""
        page = self._worker.page
        page.cooperates = 1
        return bool(page.cancel == self._claimed.id)

    def encoded(self, kind: str, data: dict[str, Any]) -> str:
        """The data of a journal event as JSON text. Raises PayloadError."""
        return dumps(data, limit_bytes=self._worker.settings.payload_limit, what=kind)

    def note(self, kind: str, text: str) -> None:
        """Write a journal event; a database that is away costs the event, never the job."""
        job, worker = self._claimed, self._worker
        worker.in_store = True
        try:
            if not events.write(worker.connection(), job.id, job.lease, kind, text):
                log.warning("job %d: the lease is lost, its %s is dropped", job.id, kind)
        except connect.TROUBLE as error:
            log.warning(
                "job %d: its %s cannot be written: %s", job.id, kind, connect.unreachable(error).message
            )
        finally:
            worker.in_store = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Lend a connection of its own whose commit also completes the job.

        Closed afterwards: locks, settings and roles of this job must not reach another's.
        """
        job, page = self._claimed, self._worker.page
        if self.settled or self._open:
            raise UsageError(
                f"job {job.id} has completed in an earlier ctx.transaction(), or is about to",
                "do all that belongs together in one block",
            )
        self._open = True
        conn = connect.connect(self._worker.plan.url, name=f"queuety worker {self._worker.name} transaction")
        try:
            with conn.transaction():
                yield conn
                batch = Batch(job.lease)
                batch.add(job.id, Complete(), page.began - page.claimed, time.monotonic() - page.claimed)
                if not settle(conn, batch):
                    raise LeaseLost(f"job {job.id} has been given to somebody else", "nothing was committed")
            self.settled = True
            page.marks[page.current] = (
                Mark.SETTLED
            )  # or the keeper would take the row's absence for a lost lease
        finally:
            self._open = False
            conn.close()

    def after(self, outcome: Outcome) -> None:
        """Keep the result of a run whose own transaction had completed the job; what else came is ignored."""
        job_id = self._claimed.id
        if not isinstance(outcome, Returned):
            log.warning(
                "job %d had completed in its transaction; what came after it is ignored: %s", job_id, outcome
            )
        elif outcome.result is not None:
            with suppress(*connect.TROUBLE):
                claims.keep_result(self._worker.connection(), job_id, outcome.result)
