"""Jobs over HTTP: list, look, start, cancel, retry."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from starlette.responses import Response

from queuety.app import Queuety
from queuety.errors import UsageError
from queuety.model import State
from queuety.plain import as_json
from queuety.store import latest, requests, search
from queuety.store.connect import Connection
from queuety.units import instant, shown
from queuety.web import shapes
from queuety.web.operation import Call
from queuety.web.problems import Problem

# Of `Handler.using`: all but the connection, which is ours to give.
OPTIONS = (
    "queue", "priority", "max_attempts", "backoff", "delay", "at", "tags", "unique", "unique_key", "unique_until",
    "unique_for", "on_duplicate", "concurrency_group", "concurrency_limit", "cost_units", "rate_limit", "rate_key",
)  # fmt: skip


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    return Response(as_json(value), status, headers, "application/json")


async def listing(call: Call) -> Response:
    """Newest first; `after` is the last id of the page before."""
    limit: int = call.values["limit"]

    def read(conn: Connection) -> tuple[list[Any], dict[int, dict[str, Any]]]:
        found = search.jobs(
            conn, **{**call.values, "limit": limit + 1}
        )  # one more says whether a page follows
        return found, latest.progress(conn, [job.id for job in found[:limit] if job.attempts])

    found, told = await call.service.look(read)
    jobs = [shapes.job(job, told.get(job.id)) for job in found[:limit]]
    return answer({"jobs": jobs, "next": jobs[-1]["id"] if len(found) > limit else None})


async def one(call: Call) -> Response:
    job_id: int = call.values["id"]

    def read(conn: Connection) -> tuple[Any, dict[int, dict[str, Any]]]:
        found = search.find(conn, job_id)
        return found, latest.progress(conn, [job_id] if found.attempts else [])

    found, told = await call.service.look(read)
    return answer(shapes.job(found, told.get(job_id)))


async def start(call: Call) -> Response:
    """Write a job; under an Idempotency-Key once, however often the same is sent."""
    handler, payload, options = _order(call.body)
    key: str | None = call.values["Idempotency-Key"]
    app = call.service.app

    def write(connection: Connection | None) -> int:
        handle: Any = app.enqueue(handler, payload, connection=connection, **options)
        return int(handle.id)

    if key is None:
        job_id = await call.service.threads.run(lambda: write(None))
    else:
        job_id = await call.service.threads.run(lambda: _once(app, call, key, write))
    return started(call, job_id)


def _once(app: Queuety, call: Call, key: str, write: Any) -> int:
    text = json.dumps(call.body, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).digest()
    window = app.settings.web_idempotency_window
    with app._borrow() as conn:
        kept = requests.once(conn, call.who, key, digest, window, lambda: write(conn))
        there = kept.new or kept.job_id in latest.states(conn, [kept.job_id])
    if kept.digest != digest:
        raise Problem(
            422,
            "idempotency-key-reused",
            f"the Idempotency-Key {shown(key)} was sent before, with another body",
            "give each request its own key, and send the same body with it when you repeat it",
        )
    if not there:  # a second one would do its work again; its address would lead nowhere
        raise Problem(
            410,
            "job-deleted",
            f"the job {kept.job_id}, which this Idempotency-Key made, has been deleted",
            "to have the work done once more, send a new key",
        )
    return kept.job_id


def started(call: Call, job_id: int) -> Response:
    """202: where the job is to be found. The same answer for a request that is repeated."""
    here = f"{call.request.scope.get('root_path', '').rstrip('/')}/api/jobs/{job_id}"
    value = {"id": str(job_id), "url": here, "events_url": f"{here}/events"}
    return answer(value, 202, Location=here)


async def cancel(call: Call) -> Response:
    """200: it is cancelled; 202: it runs, and has been told to stop."""
    state = await call.service.ask(lambda app: app.cancel(call.values["id"]))
    value = {"id": str(call.values["id"]), "status": shapes.STATUS[state], "state": str(state)}
    return answer(value, 200 if state is State.CANCELLED else 202)


async def retry(call: Call) -> Response:
    await call.service.ask(lambda app: app.retry(call.values["id"]))
    return started(call, call.values["id"])


def _order(body: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A body as the arguments of enqueue. What each value may be is checked there."""
    for name in body:
        if name not in ("handler", "payload", *OPTIONS):
            raise UsageError(f"a job has no option {shown(name)}", f"options are {', '.join(OPTIONS)}")
    handler, payload = body.get("handler"), body.get("payload")
    if not isinstance(handler, str):
        raise UsageError("handler: it is missing, or no text", 'send {"handler": "…", "payload": {…}}')
    if payload is None:
        payload = {}
    if not isinstance(payload, dict):
        raise UsageError("payload: it is no JSON object", "give the handler's arguments by name")
    options = {name: value for name, value in body.items() if name in OPTIONS and value is not None}
    if options.get("on_duplicate") == "skip":
        raise UsageError(
            "on_duplicate: skip leaves no job to tell of", "give return, the default, or replace or error"
        )
    if isinstance(options.get("rate_limit"), list):
        options["rate_limit"] = tuple(options["rate_limit"])
    if "at" in options:
        options["at"] = _instant(options["at"])
    return handler, payload, options


def _instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise UsageError(f"at={shown(value)} is no text", "give 2030-01-31T09:00:00+09:00")
    return instant(value, what="at")
