"""What the API shows of jobs, queues, schedules and workers. Ids are texts: JavaScript rounds large numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuety.model import Job, Schedule, State
from queuety.plain import JOB_KEYS, moment, plain, schedule_fields
from queuety.store.queues import QueueRow
from queuety.store.workers import WorkerRow

# The states of the public contract, which many clients share; our own stand beside them.
STATUS: Mapping[State, str] = {
    State.PENDING: "pending",
    State.PROCESSING: "in_progress",
    State.COMPLETED: "completed",
    State.BURIED: "failed",
    State.CANCELLED: "canceled",
}
_AS_IT_IS = ("payload", "result", "error")


def job(found: Job, progress: Mapping[str, Any] | None) -> dict[str, Any]:
    """A job. progress: the last that it has told, if anything."""
    fields = {
        key: getattr(found, key) if key in _AS_IT_IS else plain(getattr(found, key)) for key in JOB_KEYS
    }
    fields["id"] = str(found.id)
    error = found.error
    if error and "traceback" in error:
        fields["error"] = {key: value for key, value in error.items() if key != "traceback"}
    return {
        **fields,
        "status": STATUS[found.state],
        "progress": None if progress is None else {**progress, "at": moment(progress["at"])},
    }


def queue(row: QueueRow) -> dict[str, Any]:
    fields: dict[str, Any] = plain(row)
    return fields


def schedule(found: Schedule) -> dict[str, Any]:
    fields = schedule_fields(found)
    return {**fields, "last_job": None if found.last_job is None else str(found.last_job)}


def worker(row: WorkerRow) -> dict[str, Any]:
    return {**plain(row), "id": str(row.id), "jobs": [str(job_id) for job_id in row.jobs]}
