"""Server-sent events of jobs, and the same as JSON for those who poll."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queuety.errors import QueuetyError, UsageError
from queuety.model import StreamEvent
from queuety.plain import as_json
from queuety.store.search import not_found
from queuety.units import LARGEST_WHOLE, shown
from queuety.watching.place import Place
from queuety.web.access import FRESH_S
from queuety.web.jobs import answer
from queuety.web.operation import Call
from queuety.web.problems import Problem
from queuety.web.tokens import Role

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.watching.viewer import AsyncStream
    from queuety.web.room import Room

log = logging.getLogger("queuety.web")

MOST_JOBS = 100  # of one stream
MOST_EVENTS = 1000  # of one answer in JSON
RETRY_MS = 2000  # after which a client that has lost its stream comes back
PING_S = 15.0  # proxies close what is silent for longer, a minute as a rule
SEND_S = 30.0  # a client that takes nothing for so long is gone
STREAM, JSON = "text/event-stream", "application/json"

Seen = dict[int, str]  # the last event that a client has, by job


def event_id(text: str, _what: str) -> str:
    """The id of an event of one job; "" is the beginning."""
    return str(Place.parse(text)) if text else ""


def places(text: str, what: str) -> Seen:
    """Where a client is in a stream of several jobs: `job:event,job:event`, as its ids are."""
    found: Seen = {}
    for part in filter(None, text.split(",")):
        job, colon, event = part.partition(":")
        if not (colon and job.isascii() and job.isdigit() and len(job) <= 19 and int(job) <= LARGEST_WHOLE):
            raise UsageError(f"{what}={shown(text)} is no id of this stream", "give the id of its last event")
        found[int(job)] = event_id(event, what)
    return found


async def of_job(call: Call) -> Response:
    """The stream of one job. The id of each event is its own."""
    job_id: int = call.values["id"]
    seen = call.values["Last-Event-ID"] or call.values["after"]
    return await _follow(call, {job_id: seen} if seen else {}, [job_id], alone=True)


async def of_jobs(call: Call) -> Response:
    """The streams of several jobs in one. The id of each event says where the client is in all of them."""
    job_ids = list(dict.fromkeys(call.values["job"] or ()))
    if not job_ids:
        raise Problem(422, "no-job", "no job is named", "/api/events?job=1&job=2")
    if len(job_ids) > MOST_JOBS:
        raise Problem(
            422, "too-many-jobs", f"{len(job_ids)} jobs are named, at most {MOST_JOBS} are possible"
        )
    return await _follow(
        call, dict(call.values["Last-Event-ID"] or call.values["after"] or {}), job_ids, alone=False
    )


async def _follow(call: Call, seen: Seen, job_ids: list[int], *, alone: bool) -> Response:
    kind = wanted(call.request)
    states = await call.service.states.of(job_ids)
    for job_id in job_ids:
        if job_id not in states:
            raise not_found(job_id)
    over = all(state.final for state in states.values())
    if kind == JSON:
        return await _history(call, seen, job_ids, over, alone)
    client = call.who or f"address:{call.request.client.host if call.request.client else ''}"
    room = call.service.room
    room.enter(client)
    stream: AsyncStream | None = None
    try:
        stream = call.service.app.astream(job_ids, after=seen)
        # Of jobs that have ended there is something at once, or nothing ever.
        first = await anext(stream) if over and call.request.method == "GET" else None
    except StopAsyncIteration:
        room.leave(client)
        # Whatever the client has lost, it has all events: EventSource comes back no more after this.
        return Response(status_code=204)
    except BaseException:
        room.leave(client)
        if stream is not None:
            await stream.aclose()
        raise
    told = _told(stream, first, None if alone else seen, partial(_may_stay, call))
    return _Stream(told, stream, room, client)


async def _may_stay(call: Call) -> bool:
    return await call.service.access.still(call.request, Role.VIEWER)


async def _history(call: Call, seen: Seen, job_ids: list[int], over: bool, alone: bool) -> Response:
    """What there is so far, without waiting."""
    events: list[StreamEvent] = []
    cut = False
    for job_id in job_ids:
        found = await call.service.ask(partial(_past, job_id, seen.get(job_id), MOST_EVENTS - len(events)))
        events += found.events
        if found.events:
            seen[job_id] = found.events[-1].event_id
        if cut := found.more:
            break
    last = seen.get(job_ids[0]) if alone else together(seen)
    if not alone:
        events.sort(key=lambda event: event.at)
    value = {
        "events": [event.as_json() for event in events],
        "last_event_id": last or None,
        "over": over and not cut,
    }
    return answer(value)


class _Past(NamedTuple):
    events: list[StreamEvent]
    more: bool


def _past(job_id: int, after: str | None, most: int, app: Queuety) -> _Past:
    """The next events of a job, and whether there are more; one more than asked for says so."""
    found = app.history(job_id, after=after, limit=most + 1)
    return _Past(found[:most], len(found) > most)


def together(seen: Mapping[int, str]) -> str:
    """Where a client is in a stream of several jobs, as the id of its events."""
    return ",".join(f"{job_id}:{event}" for job_id, event in seen.items() if event)


class _Stream(EventSourceResponse):
    """Events until the last one. Whatever ends it, its place is free afterwards and nobody watches for it."""

    def __init__(
        self, told: AsyncIterator[ServerSentEvent], stream: AsyncStream, room: Room, client: str
    ) -> None:
        super().__init__(
            told,
            ping=PING_S,
            sep="\n",
            ping_message_factory=_ping,
            send_timeout=SEND_S,
        )
        self._stream = stream
        self._room, self._client = room, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(SendTimeoutError):
                await super().__call__(scope, receive, send)
        finally:
            self._room.leave(self._client)
            await self._stream.aclose()


def _ping() -> ServerSentEvent:
    """A comment: it has no id, or a client that comes back would skip what it has not seen."""
    return ServerSentEvent(comment="ping", sep="\n")


async def _told(
    stream: AsyncStream,
    first: StreamEvent | None,
    seen: Seen | None,
    may_stay: Callable[[], Awaitable[bool]],
) -> AsyncIterator[ServerSentEvent]:
    """seen: of a stream of several jobs, whose ids tell the place in all of them; None: of one.

    may_stay: asked every few seconds; where it says no the stream ends, and a client that comes back is refused.
    """
    yield ServerSentEvent(retry=RETRY_MS, sep="\n")  # at once: the client learns that it is connected
    try:
        if first is not None:
            yield _framed(first, seen)
        asked_at = anyio.current_time()
        while True:
            event = None
            with anyio.move_on_at(asked_at + FRESH_S):  # a read that is cut short loses nothing
                event = await anext(stream)
            if anyio.current_time() >= asked_at + FRESH_S:
                if not await may_stay():
                    return
                asked_at = anyio.current_time()
            if event is not None:
                yield _framed(event, seen)
    except StopAsyncIteration:
        return
    except QueuetyError as error:  # without the final event: the client comes back and goes on
        log.warning("a stream ends early: %s", error)


def _framed(event: StreamEvent, seen: Seen | None) -> ServerSentEvent:
    place = event.event_id
    if seen is not None:
        seen[event.job_id] = event.event_id
        place = together(seen)
    data: Any = as_json(event.as_json()).decode("ascii")
    return ServerSentEvent(data, event=event.type, id=place, sep="\n")


def wanted(request: Request) -> str:
    """STREAM or JSON, by the Accept header. Raises Problem 406 if neither will do."""
    header = request.headers.get("accept", "").strip()
    if not header:
        return STREAM
    quality = {STREAM: _quality(header, STREAM), JSON: _quality(header, JSON)}
    if not any(quality.values()):
        raise Problem(406, "no-such-form", "there are text/event-stream and application/json here")
    return JSON if quality[JSON] > quality[STREAM] else STREAM


def _quality(header: str, kind: str) -> float:
    """How much a kind is wanted: the most exact range that fits decides."""
    best, exact = 0.0, -1
    for item in header.split(","):
        name, *options = (part.strip().lower() for part in item.split(";"))
        fits = [kind, kind.partition("/")[0] + "/*", "*/*"]
        if name not in fits or 2 - fits.index(name) < exact:
            continue
        exact, best = 2 - fits.index(name), 1.0
        for option in options:
            if option.startswith("q="):
                with suppress(ValueError):
                    best = float(option[2:])
    return best
