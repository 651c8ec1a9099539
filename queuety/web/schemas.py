"""The shapes of what is sent and answered, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuety.model import Missed, Overlap, Priority, State
from queuety.web.shapes import STATUS

_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_TIME = {"type": "string", "format": "date-time"}
_MAYBE_TIME = {"type": ["string", "null"], "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_ID = {"type": "string", "pattern": "^-?[0-9]+$"}
_MAYBE_ID = {"type": ["string", "null"], "pattern": "^-?[0-9]+$"}
_YES = {"type": "boolean"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_OBJECT = {"type": "object"}
_MAYBE_OBJECT = {"type": ["object", "null"]}
_NUMBER = {"type": ["number", "null"]}
_PRIORITY = {"enum": [one.name.lower() for one in Priority]}
_STATUS = {"enum": list(STATUS.values()), "description": "The public state."}
_STATE = {"enum": [str(one) for one in State], "description": "The state as Queuety itself calls it."}
_DURATION = {"type": ["number", "string"], "minimum": 0, "description": 'Seconds, or "5m".'}
_DELAY = {"type": ["number", "string"], "description": 'Seconds from now, or "5m"; a negative one means now.'}
_TYPE = {
    "enum": ["job.started", "job.progress", "job.partial", "job.completed", "job.failed", "job.canceled"]
}
_WHOLE = {"type": "integer"}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _closed(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of a request: a name that is not known is a mistake."""
    return {**_object(required, optional), "additionalProperties": False}


def _or_null(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties that may also be null, which is as if they were left out."""
    return {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in properties.items()}


def _page(name: str, item: str) -> dict[str, Any]:
    rows = {"type": "array", "items": {"$ref": f"#/components/schemas/{item}"}}
    return _object(
        {name: rows, "next": {**_MAYBE, "description": "Give it as `after` for the page that follows."}}
    )


SCHEMAS: Mapping[str, Any] = {
    "NewJob": _closed(
        {"handler": _NAME},
        _or_null({
            "payload": {**_OBJECT, "description": "The handler's arguments, by name."},
            "queue": _NAME,
            "priority": {"anyOf": [_PRIORITY, {"type": "integer", "minimum": 0, "maximum": 3}]},
            "max_attempts": {"type": "integer", "minimum": 1, "maximum": 1000},
            "backoff": {"anyOf": [{"enum": ["exponential", "linear", "fixed"]}, {"type": "array", "items": _DURATION}]},
            "delay": _DELAY,
            "at": {**_TIME, "description": "A time that has passed means now."},
            "tags": {"type": "array", "items": _NAME},
            "unique": _YES,
            "unique_key": _NAME,
            "unique_until": {"enum": ["start", "end"]},
            "unique_for": _DURATION,
            "on_duplicate": {"enum": ["return", "replace", "error"]},
            "concurrency_group": _NAME,
            "concurrency_limit": _WHOLE,
            "cost_units": _WHOLE,
            "rate_limit": {
                "type": "array",
                "prefixItems": [_WHOLE, {"type": "number"}],
                "minItems": 2,
                "maxItems": 2,
                "description": "Starts, and the seconds of the window.",
            },
            "rate_key": _NAME,
        }),
    ),
    "Started": _object({"id": _ID, "url": _TEXT, "events_url": _TEXT}),
    "Cancelled": _object({"id": _ID, "status": _STATUS, "state": _STATE}),
    "Job": _object(
        {
            "id": _ID,
            "queue": _TEXT,
            "handler": _TEXT,
            "status": _STATUS,
            "state": _STATE,
            "priority": _PRIORITY,
            "attempts": _COUNT,
            "max_attempts": _COUNT,
            "payload": {"description": "The handler's arguments."},
            "result": {"description": "What the handler returned."},
            "error": {**_MAYBE_OBJECT, "description": "Of the last run that failed: type and message."},
            "progress": {
                "type": ["object", "null"],
                "description": "The last that it has told: step, total, message, and when.",
                "required": ["at"],
                "properties": {"step": {"type": "number"}, "total": {"type": "number"}, "message": _TEXT, "at": _TIME},
            },
            "tags": {"type": "array", "items": _TEXT},
            "parked_on": {**_MAYBE, "description": "The key that it waits for."},
            "unique_key": _MAYBE,
            "worker": _MAYBE,
            "available_at": _TIME,
            "created_at": _TIME,
            "started_at": _MAYBE_TIME,
            "finished_at": _MAYBE_TIME,
        }
    ),
    "JobPage": _page("jobs", "Job"),
    "Event": _object(
        {
            "event_id": {**_TEXT, "description": "Grows within a job; the same for every viewer."},
            "type": _TYPE,
            "job_id": _ID,
            "timestamp": _TIME,
            "payload": _OBJECT,
        }
    ),
    "History": _object(
        {
            "events": {"type": "array", "items": {"$ref": "#/components/schemas/Event"}},
            "last_event_id": {**_MAYBE, "description": "Give it as `after` to go on from here."},
            "over": {**_YES, "description": "Nothing more is to come."},
        }
    ),
    "EventStream": {
        "type": "object",
        "description": "One server-sent event: `retry` alone at first, then an Event each.",
        "properties": {
            "id": {**_TEXT, "description": "For Last-Event-ID."},
            "event": _TYPE,
            "data": {**_TEXT, "contentMediaType": "application/json", "description": "An Event."},
            "retry": _COUNT,
        },
    },
    "Queue": _object(
        {
            "name": _TEXT,
            "paused": _YES,
            "paused_at": _MAYBE_TIME,
            "paused_until": _MAYBE_TIME,
            "reason": _MAYBE,
            "due": _COUNT,
            "later": _COUNT,
            "parked": _COUNT,
            "processing": _COUNT,
            "oldest_due_s": {**_NUMBER, "description": "Seconds that the oldest due job has waited."},
        }
    ),
    "QueuePage": _page("queues", "Queue"),
    "Pause": _closed({}, {"reason": _MAYBE, "until": _MAYBE_TIME}),
    "Paused": _object({"name": _TEXT, "paused": _YES, "paused_until": _MAYBE_TIME, "reason": _MAYBE}),
    "Resumed": _object({"name": _TEXT, "paused": _YES, "was_paused": _YES}),
    "Schedule": _object(
        {
            "key": _TEXT,
            "handler": _TEXT,
            "payload": _OBJECT,
            "job": {**_OBJECT, "description": "Options of its jobs."},
            "state": {"enum": ["active", "paused", "broken", "retired", "over"]},
            "cron": _MAYBE,
            "every_s": _NUMBER,
            "timezone": _TEXT,
            "starts_at": _MAYBE_TIME,
            "ends_at": _MAYBE_TIME,
            "jitter_s": {"type": "number"},
            "overlap": {"enum": [str(one) for one in Overlap]},
            "missed": {"enum": [str(one) for one in Missed]},
            "missed_limit": _COUNT,
            "next_at": _MAYBE_TIME,
            "buffered_at": _MAYBE_TIME,
            "last_at": _MAYBE_TIME,
            "last_job": _MAYBE_ID,
            "paused_at": _MAYBE_TIME,
            "pause_reason": _MAYBE,
            "retired_at": _MAYBE_TIME,
            "broken": _MAYBE,
            "declared_by": _MAYBE,
            "created_at": _TIME,
            "changed_at": _TIME,
        }
    ),
    "SchedulePage": _page("schedules", "Schedule"),
    "SchedulePause": _closed({}, {"reason": _MAYBE}),
    "ScheduleResumed": _object({"key": _TEXT, "was_paused": _YES}),
    "Worker": _object(
        {
            "id": _ID,
            "name": _TEXT,
            "kind": {"enum": ["keeper", "worker", "scheduler"]},
            "host": _TEXT,
            "pid": _COUNT,
            "pool": {"type": ["integer", "null"]},
            "queues": {"type": "array", "items": _TEXT},
            "version": _TEXT,
            "started_at": _TIME,
            "seen_at": _TIME,
            "silent_s": {"type": "number"},
            "jobs": {"type": "array", "items": _ID},
        }
    ),
    "WorkerPage": _page("workers", "Worker"),
    "Problem": _object(
        {"type": _TEXT, "title": _TEXT, "status": _WHOLE, "detail": _TEXT},
        {
            "hint": {**_TEXT, "description": "What to do next."},
            "existing": {**_ID, "description": "The job that holds the unique key."},
        },
    ),
    "Text": _TEXT,
    "Document": _OBJECT,
}  # fmt: skip
