"""The one table of routes: requests are routed by it, and /openapi.json is written from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queuety import units
from queuety.errors import JobNotFound, UsageError
from queuety.model import State
from queuety.names import check_name, check_queue
from queuety.web import figures, jobs, openapi, queues, schedules, streams
from queuety.web.operation import Operation, Parameter
from queuety.web.shapes import STATUS
from queuety.web.tokens import Role

MOST_LISTED = 1000
LONGEST_KEY = 255

_OURS: Mapping[str, State] = {status: state for state, status in STATUS.items()}
_STATES = sorted({*map(str, State), *STATUS.values()})


def _job_id(text: str, what: str) -> int:
    """A job's id. What is no number is no job's."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 0 < int(text) <= units.LARGEST_WHOLE):
        raise JobNotFound(f"there is no job {text[:40]!r}", "ids are whole numbers from 1")
    return int(text)


def _after_id(text: str, what: str) -> int:
    return units.whole(text, minimum=1, what=what)


def _state(text: str, what: str) -> State:
    try:
        return _OURS[text] if text in _OURS else State(text)
    except ValueError:
        raise UsageError(
            f"{what}={units.shown(text)} is no state", f"give one of {', '.join(_STATES)}"
        ) from None


def _limit(text: str, what: str) -> int:
    return units.whole(text, minimum=1, maximum=MOST_LISTED, what=what)


def _key(text: str, what: str) -> str:
    """The text of an Idempotency-Key, with or without the quotes of its draft."""
    key = text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text
    if not key or len(key) > LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise UsageError(
            f"{what}: {units.shown(text)} is no key", f"give 1 to {LONGEST_KEY} printable ASCII characters"
        )
    return key


_NAME: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
_PAGE = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 100}
_ID = {"type": "string", "pattern": "^[1-9][0-9]{0,17}$", "example": "4711"}

JOB = Parameter("id", "path", "The job.", _ID, _job_id)
QUEUE = Parameter("name", "path", "The queue.", _NAME, lambda text, _: check_queue(text))
SCHEDULE = Parameter("key", "path", "The schedule.", _NAME, lambda text, _: check_name("schedule", text))
LIMIT = Parameter("limit", "query", "Most rows of a page.", _PAGE, _limit, default=100)


def _after(help_: str, schema: Mapping[str, Any], read: Any) -> Parameter:
    return Parameter("after", "query", help_, schema, read)


BY_STATE = Parameter(
    "state", "query", "Only of this state, by its public name or ours.", {"enum": _STATES}, _state
)
BY_QUEUE = Parameter("queue", "query", "Only of this queue.", _NAME, lambda text, _: check_queue(text))
BY_HANDLER = Parameter(
    "handler", "query", "Only of this handler.", _NAME, lambda text, _: check_name("handler", text)
)
BY_TAG = Parameter("tag", "query", "Only with this tag.", _NAME, lambda text, _: check_name("tag", text))
ONCE = Parameter(
    "Idempotency-Key",
    "header",
    "Requests with the same key and body make one job, also at the same time; with another body they are refused, "
    "and so is every one once that job is deleted.",
    {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
    _key,
)
_EVENT_ID = {"type": "string", "maxLength": 12_000, "example": "57.0"}
SEEN = Parameter(
    "after",
    "query",
    "The id of the last event that the client has; Last-Event-ID wins over it.",
    _EVENT_ID,
    streams.event_id,
)
LAST_SEEN = Parameter(
    "Last-Event-ID",
    "header",
    "The id of the last event that the client has; EventSource sends it when it comes back.",
    _EVENT_ID,
    streams.event_id,
)
ALL_SEEN, ALL_LAST_SEEN = (replace(one, read=streams.places) for one in (SEEN, LAST_SEEN))
WATCHED = Parameter(
    "job",
    "query",
    f"A job to follow; up to {streams.MOST_JOBS} of them.",
    {"type": "array", "items": _ID, "minItems": 1, "maxItems": streams.MOST_JOBS},
    _job_id,
    many=True,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/api/jobs", "listJobs", Role.VIEWER, "Jobs of all states, the newest first.", jobs.listing,
        (BY_STATE, BY_QUEUE, BY_HANDLER, BY_TAG, LIMIT, _after("The last id of the page before.", _ID, _after_id)),
        answer="JobPage", cached=True,
    ),
    Operation(
        "POST", "/api/jobs", "startJob", Role.OPERATOR, "Write a job.", jobs.start, (ONCE,), body="NewJob",
        status=202, answer="Started", headers={"Location": "Where the job is."}, refuses=(409, 410),
    ),
    Operation(
        "GET", "/api/jobs/{id}", "getJob", Role.VIEWER, "A job, in any state.", jobs.one, (JOB,), answer="Job",
        refuses=(404,), cached=True,
    ),
    Operation(
        "POST", "/api/jobs/{id}/cancel", "cancelJob", Role.OPERATOR,
        "Cancel a job: one that waits at once (200), one that runs is told to stop (202).", jobs.cancel, (JOB,),
        answer="Cancelled", more={202: "Cancelled"}, refuses=(404, 409),
    ),
    Operation(
        "POST", "/api/jobs/{id}/retry", "retryJob", Role.OPERATOR,
        "Send a failed or canceled job back, due now, with a fresh budget of attempts.", jobs.retry, (JOB,),
        status=202, answer="Started", headers={"Location": "Where the job is."}, refuses=(404, 409),
    ),
    Operation(
        "GET", "/api/jobs/{id}/events", "followJob", Role.VIEWER,
        "What happens to a job, from its start or after an event, until its end. 204: all has been told.",
        streams.of_job, (JOB, SEEN, LAST_SEEN), answer="EventStream", media="text/event-stream",
        also={"application/json": "History"}, more={204: ""}, refuses=(404, 406, 429),
    ),
    Operation(
        "GET", "/api/events", "followJobs", Role.VIEWER, "The same for several jobs, in one stream.",
        streams.of_jobs, (WATCHED, ALL_SEEN, ALL_LAST_SEEN), answer="EventStream", media="text/event-stream",
        also={"application/json": "History"}, more={204: ""}, refuses=(404, 406, 429),
    ),
    Operation(
        "GET", "/api/queues", "listQueues", Role.VIEWER, "Queues that hold jobs or are paused, by name.",
        queues.listing, (LIMIT, _after("The last name of the page before.", _NAME, QUEUE.read)),
        answer="QueuePage", cached=True,
    ),
    Operation(
        "POST", "/api/queues/{name}/pause", "pauseQueue", Role.ADMIN,
        "Pause a queue: none of its jobs is started any more. What runs goes on.", queues.pause, (QUEUE,),
        body="Pause", body_needed=False, answer="Paused",
    ),
    Operation(
        "POST", "/api/queues/{name}/resume", "resumeQueue", Role.ADMIN, "Let a paused queue go on.", queues.resume,
        (QUEUE,), answer="Resumed",
    ),
    Operation(
        "GET", "/api/schedules", "listSchedules", Role.VIEWER, "Schedules by key.", schedules.listing,
        (BY_HANDLER, LIMIT, _after("The last key of the page before.", _NAME, SCHEDULE.read)),
        answer="SchedulePage", cached=True,
    ),
    Operation(
        "POST", "/api/schedules/{key}/run", "runSchedule", Role.OPERATOR,
        "Write a job of a schedule now, besides its rhythm.", schedules.run, (SCHEDULE,), status=202,
        answer="Started", headers={"Location": "Where the job is."}, refuses=(404, 409),
    ),
    Operation(
        "POST", "/api/schedules/{key}/pause", "pauseSchedule", Role.ADMIN, "Let a schedule tick no more.",
        schedules.pause, (SCHEDULE,), body="SchedulePause", body_needed=False, answer="Schedule", refuses=(404,),
    ),
    Operation(
        "POST", "/api/schedules/{key}/resume", "resumeSchedule", Role.ADMIN, "Let a paused schedule go on.",
        schedules.resume, (SCHEDULE,), answer="ScheduleResumed", refuses=(404,),
    ),
    Operation(
        "GET", "/api/workers", "listWorkers", Role.VIEWER, "The processes of all pools, by id.", queues.processes,
        (LIMIT, _after("The last id of the page before.", _ID, _after_id)), answer="WorkerPage", cached=True,
    ),
    Operation(
        "GET", "/metrics", "metrics", Role.VIEWER, "Figures of the whole queue for Prometheus.", figures.metrics,
        answer="Text", media="text/plain",
    ),
    Operation(
        "GET", "/openapi.json", "openapi", Role.VIEWER, "This description.", openapi.serve, answer="Document",
        cached=True,
    ),
)  # fmt: skip
