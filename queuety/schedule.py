"""Schedules as they are declared: from keyword arguments to a checked value."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from queuety import handler, units
from queuety.errors import UsageError
from queuety.handler import Handler, JobOptions, check_instant, new_job
from queuety.limits import LIMITS, check_whole
from queuety.model import Missed, NewJob, NewSchedule, Overlap
from queuety.names import MAX_NAME, check_name, quoted
from queuety.policy.cadence import cadence, check_cron, check_every, check_zone

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.settings import Settings

E = TypeVar("E", Overlap, Missed)

TAG = "schedule:"  # and the key: on every job of a schedule
MAX_KEY = MAX_NAME - len(TAG)
LONGEST_JITTER_S = 86_400.0
MOST_MISSED = 1000

OWN = (
    "name", "cron", "every", "timezone", "payload", "start", "end", "jitter", "overlap", "missed", "missed_limit",
)  # fmt: skip
OF_JOBS = (
    "queue", "priority", "max_attempts", "backoff", "tags", "unique", "unique_key", "unique_until", "unique_for",
    "on_duplicate", *LIMITS,
)  # fmt: skip
_OF_ENQUEUE = {
    "delay": "a job of a schedule is due at its tick; jitter=… makes it later",
    "at": "a job of a schedule is due at its tick; start=… and end=… bound the ticks",
    "connection": "a schedule enqueues by itself",
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule that an application's code declares. given: its keyword arguments, the key as `name`."""

    handler: str
    given: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.given["name"])

    @property
    def zoneless(self) -> bool:
        """True if it is read in a zone that it does not name."""
        return self.given.get("cron") is not None and self.given.get("timezone") is None


def declare(app: Queuety, name: str, given: Mapping[str, Any]) -> Declaration:
    """Check a declaration, but for its handler and so the payload's fit, if that is registered later."""
    given = {
        option: tuple(value) if isinstance(value, Iterator) else value for option, value in given.items()
    }
    new = new_schedule(app, name, given)
    # Copied, since it is read again at the start, whatever its owner does with it meanwhile.
    return Declaration(new.job.handler, {**copy.deepcopy(given), "name": new.key})


def declared(app: Queuety, declarations: Iterable[Declaration]) -> list[NewSchedule]:
    """The schedules of declarations, as the application's settings are now; raise UsageError for an unknown handler."""
    default_zone(app.settings)  # a bad one is told even if all name their own: commands would go by it
    found = []
    for one in declarations:
        if one.handler not in app.handlers:
            raise UsageError(
                f"schedule {quoted(one.key)}: the application has no handler {quoted(one.handler)}",
                did_you_mean(one.handler, app.handlers) or "register it with @app.job",
            )
        found.append(new_schedule(app, one.handler, one.given))
    return found


def default_zone(settings: Settings) -> str | None:
    """The zone of cron schedules that name none; raise UsageError if the setting is no zone. None: nobody says."""
    zone = settings.timezone
    if zone is None:
        return None
    try:
        return check_zone(zone)
    except UsageError as error:
        raise UsageError(
            f"timezone = {units.shown(zone)} ({settings.origin('timezone')}) is not the name of a time zone",
            error.hint,
        ) from None


def new_schedule(app: Queuety, name: str, given: Mapping[str, Any]) -> NewSchedule:
    """Check everything about a schedule; raise UsageError naming it and the culprit.

    name: the handler's; if this application has it, the payload is checked against its signature.
    given: the arguments named in OWN and OF_JOBS; None means not given.
    """
    name = check_name("handler", name)
    values = {option: value for option, value in given.items() if value is not None}
    key = check_key(values.pop("name", name))
    try:
        _refuse_unknown(values)
        for_jobs = {option: values.pop(option) for option in OF_JOBS if option in values}
        job = _job(app, name, key, values.pop("payload", {}), for_jobs)
        new = NewSchedule(key, job, **_times(app.settings, values), **_manners(values))
        _refuse_empty(new)
    except UsageError as error:
        raise type(error)(f"schedule {quoted(key)}: {error.message}", error.hint) from None
    return new


def check_key(value: object) -> str:
    """Return a schedule's key as it is stored, or raise UsageError."""
    key = check_name("schedule", value)
    if len(key) > MAX_KEY:
        raise UsageError(
            f"the schedule name {quoted(key)} has {len(key)} characters, at most {MAX_KEY} are possible",
            "shorten it",
        )
    return key


def cadence_only(settings: Settings, given: Mapping[str, Any]) -> NewSchedule:
    """A schedule without jobs, for a look at its ticks. given: cron or every, timezone, start, end."""
    values = {option: value for option, value in given.items() if value is not None}
    new = NewSchedule("preview", NewJob("", "{}"), **_times(settings, values))
    _refuse_empty(new)
    return new


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take arguments for a plain function apart: the schedule's, and those that make the function a handler."""
    of_handlers = set(handler.SETTINGS) - {"name"}
    of_handler = {option: value for option, value in given.items() if option in of_handlers}
    return {option: value for option, value in given.items() if option not in of_handler}, of_handler


def cron_alone(text: str) -> str:
    """The cron expression that a decorator is given by position, or UsageError."""
    try:
        return check_cron(text)
    except UsageError as error:
        hint = 'for a handler by its name give cron= or every= too: app.schedule("add", every="1h")'
        raise UsageError(error.message, hint if text.isidentifier() else error.hint) from None


def by_name_only(name: str) -> Callable[..., Any]:
    """What a declaration by its handler's name returns: not a decorator."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(
            f"app.schedule({name!r}, …) with cron= or every= declares a schedule of the handler {name!r}: it decorates "
            "nothing",
            "as a decorator it takes the cron expression alone, or cron= or every= without a handler's name",
        )

    return refuse


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _job(app: Queuety, name: str, key: str, payload: Any, given: Mapping[str, Any]) -> NewJob:
    own: Handler[..., Any] | None = app.handlers.get(name)
    text = app.payload_text(own, payload)
    job = new_job(app, name, text, JobOptions.parse(given), own.options if own else None)
    return dataclasses.replace(job, tags=tuple(dict.fromkeys((*job.tags, TAG + key))))


def _times(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """When it ticks."""
    cron, every = values.get("cron"), values.get("every")
    if cron is None and every is None:
        raise UsageError(
            "it has neither a cron expression nor an interval", 'give cron="0 3 * * *" or every="30 minutes"'
        )
    if cron is not None and every is not None:
        raise UsageError("cron and every exclude each other", "give one of them")
    zone = values.get("timezone")
    return {
        "cron": None if cron is None else check_cron(cron),
        "every_s": None if every is None else check_every(every),
        "timezone": (default_zone(settings) or "UTC") if zone is None else check_zone(zone),
        "starts_at": _instant("start", values.get("start")),
        "ends_at": _instant("end", values.get("end")),
    }


def _manners(values: Mapping[str, Any]) -> dict[str, Any]:
    """How late its jobs are due, and what becomes of ticks that cannot run at their time."""
    found: dict[str, Any] = {}
    if (jitter := values.get("jitter")) is not None:
        found["jitter_s"] = units.seconds(jitter, maximum=LONGEST_JITTER_S, what="jitter")
    if (overlap := values.get("overlap")) is not None:
        found["overlap"] = _choice(Overlap, "overlap", overlap)
    if (missed := values.get("missed")) is not None:
        found["missed"] = _choice(Missed, "missed", missed)
    if (limit := values.get("missed_limit")) is not None:
        found["missed_limit"] = check_whole("missed_limit", limit, 1, MOST_MISSED)
        if found.get("missed") is not Missed.ALL:
            raise UsageError(f'missed_limit={limit} goes with missed="all" only', 'add missed="all"')
    return found


def _instant(what: str, value: object) -> datetime | None:
    return None if value is None else check_instant(units.instant(value, what=what))


def _choice(kind: type[E], option: str, value: object) -> E:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(
            f"{option}={units.shown(value)} is unknown", f"use one of {', '.join(kind)}"
        ) from None


def _refuse_empty(new: NewSchedule) -> None:
    """Refuse a schedule that never ticks. One that has ended may be declared: code outlives its schedules."""
    start, end = new.starts_at, new.ends_at
    if start is not None and end is not None and start >= end:
        raise UsageError(
            f"it ends at {end.isoformat()}, not after its start at {start.isoformat()}", "end it later"
        )
    since = start or datetime.now(UTC)
    ticks = cadence(cron=new.cron, every_s=new.every_s, timezone=new.timezone, anchor=since, starts_at=start)
    first = ticks.next(since - timedelta(microseconds=1))
    if first is None or (start is not None and end is not None and first >= end):
        raise UsageError("it never ticks between its start and its end", "let it start earlier or end later")


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    for option in values:
        if option in _OF_ENQUEUE:
            raise UsageError(f"a schedule has no option {option!r}", _OF_ENQUEUE[option])
        if option in OWN or option in OF_JOBS:
            continue
        if option in handler.SETTINGS:
            raise UsageError(
                f"a schedule has no option {option!r}",
                "it is a setting of the handler: give it to @app.job(…)",
            )
        raise UsageError(
            f"a schedule has no option {option!r}",
            did_you_mean(option, (*OWN, *OF_JOBS)) or f"options are {', '.join((*OWN, *OF_JOBS))}",
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""
