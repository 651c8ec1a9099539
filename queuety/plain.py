"""Values as JSON can hold them: what every door shows of a job, a schedule, a tick."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from queuety.model import Event, Job, Priority, Schedule, Tick, Webhook

JOB_KEYS = (
    "id",
    "queue",
    "handler",
    "state",
    "priority",
    "attempts",
    "max_attempts",
    "payload",
    "result",
    "error",
    "tags",
    "parked_on",
    "unique_key",
    "worker",
    "available_at",
    "created_at",
    "started_at",
    "finished_at",
)


SCHEDULE_KEYS = (
    "key",
    "handler",
    "payload",
    "job",
    "state",
    "cron",
    "every_s",
    "timezone",
    "starts_at",
    "ends_at",
    "jitter_s",
    "overlap",
    "missed",
    "missed_limit",
    "next_at",
    "buffered_at",
    "last_at",
    "last_job",
    "paused_at",
    "pause_reason",
    "retired_at",
    "broken",
    "declared_by",
    "created_at",
    "changed_at",
)

TICK_KEYS = (
    "schedule",
    "at",
    "kind",
    "reason",
    "job_id",
    "through",
    "ticks",
    "ended",
    "error",
    "noted_at",
    "ended_at",
)


def moment(at: datetime | None) -> str | None:
    """A time in RFC 3339, UTC."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def job_fields(job: Job) -> dict[str, Any]:
    """A job as the contract's JSON object."""
    return {key: plain(getattr(job, key)) for key in JOB_KEYS}


def schedule_fields(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a JSON object; `job` holds the options of its jobs as they are given, not as they are stored."""
    fields = {key: plain(getattr(schedule, key)) for key in SCHEDULE_KEYS}
    job = dict(schedule.job)
    with suppress(ValueError, TypeError):  # a row that somebody else wrote is shown as it is
        if "priority" in job:
            job["priority"] = plain(Priority(job["priority"]))
        for name in ("backoff", "limits"):
            if job.get(name):
                job[name] = json.loads(job[name])
    return {**fields, "job": job}


def tick_fields(tick: Tick) -> dict[str, Any]:
    return {key: plain(getattr(tick, key)) for key in TICK_KEYS}


def webhook_fields(webhook: Webhook) -> dict[str, Any]:
    """A webhook as a JSON object, without its secrets."""
    fields: dict[str, Any] = plain(webhook)
    return fields


def event_fields(event: Event) -> dict[str, Any]:
    return {key: plain(getattr(event, key)) for key in ("id", "job_id", "type", "at", "attempt", "data")}


def plain(value: Any) -> Any:
    """A value as JSON can hold it: times as text, priorities by name, dataclasses as objects."""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, Priority):
        return value.name.lower()
    if isinstance(value, enum.StrEnum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def as_json(value: Any) -> bytes:
    """A value as JSON that every reader takes: ASCII only, and no number that JSON does not have."""
    try:
        text = json.dumps(value, default=plain, allow_nan=False, separators=(",", ":"))
    except ValueError:  # PostgreSQL's json holds 1e400, and Python reads it as infinity
        text = json.dumps(_finite(value), default=plain, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
