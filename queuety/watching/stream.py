"""A job's stream: made of its journal and of what its own row tells, the same for every viewer.

An event's id is `line.part`: the line of the journal that it is (part 0); or else the last one before it, part 1 for a
start and part 2 for an end, which the job's row tells. So ids grow, and can be told without having been written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queuety.model import Event, State, StreamEvent
from queuety.store.connect import Connection
from queuety.store.search import check_id, not_found
from queuety.store.watching import Glimpse, Standing, look
from queuety.watching.place import END, LINE, START, Cursor, Place

_AGAIN = frozenset({"retried", "recovered", "snoozed"})
_NOTING = _AGAIN | {"buried", "requeued"}  # lines that can tell when the run before them began
_RUN = _AGAIN | {"progress", "partial", "cancel_requested"}  # lines that only a job that has started can have
_FINAL = {State.COMPLETED: "job.completed", State.CANCELLED: "job.canceled", State.BURIED: "job.failed"}


@dataclass(frozen=True, slots=True)
class Page:
    """What a viewer reads next.

    cursor: where it is then.  over: the stream ends here.  more: there is something behind, to be read at once.
    missing: there is no such job, nor a trace of one.
    """

    events: list[StreamEvent]
    cursor: Cursor
    over: bool
    more: bool
    missing: bool = False


def compose(job_id: int, cursor: Cursor, glimpse: Glimpse) -> Page:
    """Compose the events of a stream behind `cursor` from what was found there."""
    telling = _Telling(job_id, cursor, glimpse)
    events = list(telling)
    missing = glimpse.job is None and not glimpse.lines
    return Page(events, Cursor(telling.told, telling.line, telling.read), telling.over, glimpse.more, missing)


def history(conn: Connection, job_id: int, after: str | None = None, limit: int = 1000) -> list[StreamEvent]:
    """The events of a job so far, behind the one with the id `after`, up to `limit`. Raises JobNotFound."""
    cursor = Cursor.after(after)
    found: list[StreamEvent] = []
    while len(found) < limit:
        (glimpse,) = look(conn, [(check_id(job_id), cursor.read)])
        if glimpse.job is None:
            raise not_found(job_id)
        page = compose(job_id, cursor, glimpse)
        found += page.events
        cursor = page.cursor
        if not page.more:
            break
    return found[:limit]


class _Telling:
    """Goes through the lines of a glimpse, then through what the row tells; leaves out what the viewer has."""

    def __init__(self, job_id: int, cursor: Cursor, glimpse: Glimpse) -> None:
        self._job_id = job_id
        self._glimpse = glimpse
        self._life = glimpse.life
        # The last one before what comes next. A place may be made up, and an end has no id but its own.
        self.line = cursor.line if glimpse.job is None else glimpse.line
        self.read = cursor.read
        self.told = cursor.told
        self.over = False

    def __iter__(self) -> Iterator[StreamEvent]:
        for number, line in enumerate(self._glimpse.lines):
            yield from self._told_by_line(number, line)
        if not self._glimpse.more:
            yield from self._told_by_row(self._glimpse.job)

    def _told_by_line(self, number: int, line: Event) -> Iterator[StreamEvent]:
        data = line.data if isinstance(line.data, dict) else {}
        self.read = line.id
        if line.type == "buried":  # an end like any other: the line before it gives its id
            if line.attempt:
                yield from self._start(self._started_at(number, line.at))
            yield from self._end("job.failed", line.at, _failure(data.get("error"), line.attempt))
            return
        if line.type == "requeued":
            ended_at = _time(data.get("finished_at"), line.at)
            if data.get("started_at"):
                yield from self._start(min(_time(data["started_at"], ended_at), ended_at))
            if data.get("from") == "cancelled":
                yield from self._end("job.canceled", ended_at, {"attempts": line.attempt or 0})
            else:
                yield from self._end("job.failed", ended_at, _failure(data.get("error"), line.attempt))
            self._life = line.id
        elif line.type in _RUN:
            yield from self._start(self._started_at(number, line.at))
        self.line = line.id
        if line.type in _RUN:
            kind = "job.partial" if line.type == "partial" else "job.progress"
            yield from self._new(Place(line.id, LINE), kind, line.at, _payload(line, data))

    def _told_by_row(self, job: Standing | None) -> Iterator[StreamEvent]:
        if job is None:
            self.over = True
            if self.told.part != END:  # nobody knows how it ended, if it did
                yield from self._end("job.canceled", datetime.now().astimezone(), {"deleted": True})
            return
        if job.started_at is not None:
            yield from self._start(job.started_at)
        if job.state.final and job.finished_at is not None:
            self.over = True
            if self.told.part != END and self.told > Place(
                self.line, END
            ):  # of no event: the end is told nevertheless
                self.told = Place(self.line, START)
            yield from self._end(_FINAL[job.state], job.finished_at, _summary(job))

    def _started_at(self, number: int, otherwise: datetime) -> datetime:
        """When the first run of this life was claimed: noted by the first line that ended a run, or by the row.

        otherwise: the time of the line that the start comes before; it is never later than that.
        """
        for line in self._glimpse.lines[number:]:
            if line.type in _NOTING and (text := (line.data or {}).get("started_at")):
                return min(_time(text, otherwise), otherwise)
            if line.type == "requeued":  # the row tells of a later life
                return otherwise
        job = self._glimpse.job
        alone = job is not None and job.attempts <= 1 and not self._glimpse.more
        at = job.started_at if job is not None and alone else None
        return otherwise if at is None else min(at, otherwise)

    def _start(self, at: datetime) -> Iterator[StreamEvent]:
        job = self._glimpse.job
        payload = {"handler": job.handler, "queue": job.queue} if job is not None else {}
        yield from self._new(Place(self._life, START), "job.started", at, payload)

    def _end(self, kind: str, at: datetime, payload: dict[str, Any]) -> Iterator[StreamEvent]:
        yield from self._new(Place(self.line, END), kind, at, payload)

    def _new(self, place: Place, kind: str, at: datetime, payload: dict[str, Any]) -> Iterator[StreamEvent]:
        if place > self.told:
            self.told = place
            yield StreamEvent(str(place), kind, self._job_id, at, payload)


def _payload(line: Event, data: dict[str, Any]) -> dict[str, Any]:
    """What a line of a run tells viewers."""
    if line.type == "cancel_requested":
        return {"cancelRequested": True}
    if line.type not in _AGAIN:
        return data
    told: dict[str, Any] = {"retry": line.attempt or 0, "nextAttemptInMs": _milliseconds(data.get("delay_s"))}
    if line.type != "retried":
        told[line.type] = True
    if line.type == "snoozed":  # no failure: no attempt was counted
        del told["retry"]
    if error := _error(data.get("error")):
        told["error"] = error
    return told


def _summary(job: Standing) -> dict[str, Any]:
    if job.state is State.COMPLETED:
        return {"result": job.result, "attempts": job.attempts}
    if job.state is State.BURIED:
        return _failure(job.error, job.attempts)
    return {"attempts": job.attempts}


def _failure(error: Any, attempts: int | None) -> dict[str, Any]:
    return {"error": _error(error) or {"type": "Unknown", "message": ""}, "attempts": attempts or 0}


def _error(error: Any) -> dict[str, str] | None:
    """Type and message; a traceback is not for viewers."""
    if not isinstance(error, dict):
        return None
    return {"type": str(error.get("type", "")), "message": str(error.get("message", ""))}


def _milliseconds(seconds: Any) -> int:
    return round(seconds * 1000) if isinstance(seconds, int | float) else 0


def _time(text: Any, otherwise: datetime) -> datetime:
    """A time as PostgreSQL writes it into JSON."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else otherwise
    except ValueError:
        return otherwise
