"""What this process is and runs, for its log lines: whatever is logged during a run can be found by the run's job.

A worker of a pool runs one job at a time, so there it counts for all threads, those of the handler too. In a caller's
own process (`app.worker()`) it counts for the thread, or coroutine, that runs the job, and for no other.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol


class Running(Protocol):
    """The job of a run, as it was claimed."""

    @property
    def id(self) -> int: ...
    @property
    def handler(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempts(self) -> int: ...


_process: dict[str, Any] = {}
_here: Running | None = None
_context: ContextVar[Running | None] = ContextVar("queuety_running", default=None)


def be(**fields: Any) -> None:
    """Say what this process is: pool, worker. Children inherit it over a fork."""
    _process.update(fields)


def here(job: Running | None) -> None:
    """This process runs that job now; None: none."""
    global _here
    _here = job


def within(job: Running | None) -> None:
    """This thread, or coroutine, runs that job now; None: none."""
    _context.set(job)


def fields() -> dict[str, Any]:
    """Fields for a log line that is written now."""
    job = _context.get() or _here
    return {**_process, **(of(job.id, job.handler, job.queue, job.attempts) if job is not None else {})}


def of(job_id: int, handler: str, queue: str, attempt: int) -> dict[str, Any]:
    """The fields that tell which run of which job."""
    return {"job": job_id, "handler": handler, "queue": queue, "attempt": attempt}
