"""The link from a run's context to the worker that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from queuety.context import RunningJob
from queuety.model import Priority

if TYPE_CHECKING:
    from queuety.process.worker import Worker
    from queuety.store.claims import Claimed
    from queuety.store.connect import Connection


class RunLink:
    """What one run's context may ask of its worker."""

    def __init__(self, worker: Worker, job: Claimed) -> None:
        self._worker = worker
        self.claimed = job
        self.settled = False
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
        page = self._worker.page
        page.cooperates = 1
        return page.cancel == self.claimed.id

    def note(self, kind: str, data: dict[str, Any]) -> None:
        self._worker.note_event(self.claimed, kind, data)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._worker.transaction(self) as conn:
            yield conn
