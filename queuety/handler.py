"""Handlers: the user's functions, known by name, with the ways to write jobs for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from queuety.context import Context
from queuety.errors import UsageError
from queuety.limits import LIMITS, NO_LIMITS, check_whole, limits_of, merged
from queuety.model import Limits, NewJob, Priority
from queuety.names import check_name, check_queue, check_unique_key
from queuety.payload import Codec
from queuety.policy.retry import Backoff, RetryPolicy, check_policy
from queuety.unique import (
    check_for,
    check_keyed,
    check_on_duplicate,
    check_scope,
    check_unique,
    check_until,
    unique_part,
)
from queuety.units import CENTURY_S, seconds

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.handle import JobHandle, JobHandles
    from queuety.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H")  # what an enqueue returns: a handle, or None if the job may be left out

_MAX_ATTEMPTS = 1000
_LONG_AGO = datetime(2, 1, 1, tzinfo=UTC)
_LONGEST_TIMEOUT_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Options:
    """The static settings of a handler. None: the installation's setting decides.

    timeout_s: seconds a run may take, 0: no limit.  result_limit: bytes of JSON kept of a result.
    retry: "all", "transient" or a function of the exception.
    unique: one job of a payload at a time, until its end (or start, or for so many seconds from the enqueue).
    limits: what a run must have room for.
    """

    queue: str = "default"
    priority: Priority = Priority.NORMAL
    max_attempts: int | None = None
    timeout_s: float | None = None
    backoff: Backoff | None = None
    retry: RetryPolicy = "all"
    result_limit: int | None = None
    unique: bool = False
    unique_until: str | None = None
    unique_for_s: float | None = None
    limits: Limits = NO_LIMITS


def options(given: Mapping[str, Any]) -> Options:
    """Check static settings as the decorator or a class gives them; raise UsageError naming the culprit."""
    values = dict(given)
    parsed: dict[str, Any] = {}
    if (queue := values.pop("queue", None)) is not None:
        parsed["queue"] = check_queue(queue)
    if (priority := values.pop("priority", None)) is not None:
        parsed["priority"] = check_priority(priority)
    if (attempts := values.pop("max_attempts", None)) is not None:
        parsed["max_attempts"] = check_attempts(attempts)
    if (timeout := values.pop("timeout", None)) is not None:
        parsed["timeout_s"] = _named("timeout", _timeout, timeout)
    if (backoff := values.pop("backoff", None)) is not None:
        parsed["backoff"] = Backoff.parse(backoff)
    if (retry := values.pop("retry", None)) is not None:
        parsed["retry"] = check_policy(retry)
    if (limit := values.pop("result_limit", None)) is not None:
        parsed["result_limit"] = check_whole("result_limit", limit, 0, 1 << 30)
    if (unique := values.pop("unique", None)) is not None:
        parsed["unique"] = check_unique(unique)
    if (until := values.pop("unique_until", None)) is not None:
        parsed["unique_until"] = check_until(until)
    if (window := values.pop("unique_for", None)) is not None:
        parsed["unique_for_s"] = _named("unique_for", check_for, window)
    check_scope(parsed)
    parsed["limits"] = limits_of({name: values.pop(name, None) for name in LIMITS})
    if values:
        raise UsageError(
            f"a job has no setting {next(iter(values))!r}", f"settings are {', '.join(SETTINGS)}"
        )
    return Options(**parsed)


SETTINGS = (
    "name", "queue", "priority", "max_attempts", "timeout", "backoff", "retry", "result_limit", "unique",
    "unique_until", "unique_for", *LIMITS,
)  # fmt: skip


class Handler(Generic[P, R]):
    """A function that jobs are run with. Calling it runs it here and now; `enqueue` writes a job."""

    def __init__(self, app: Queuety, function: Callable[P, R], name: str, settings: Options) -> None:
        self.app = app
        self.name = name
        self.function: Callable[..., Any] = function
        self.options = settings
        self.is_async = inspect.iscoroutinefunction(function)
        self.codec = Codec(function, name, context_type=Context)
        self.template: tuple[Settings, NewJob] | None = None  # of a job without options of its own
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<handler {self.name!r} on queue {self.options.queue!r}>"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Write a job; the arguments are checked against the signature first."""
        call: Call[P, R, JobHandle] = Call(self, PLAIN)
        return call.enqueue(*args, **kwargs)

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], *, connection: Any = None) -> JobHandles:
        """Write a job for each mapping of named arguments, all or nothing, streamed with COPY."""
        call: Call[P, R, JobHandle] = Call(self, JobOptions(connection=connection))
        return call.enqueue_many(payloads)

    @overload
    def using(self, *, on_duplicate: Literal["skip"], **given: Any) -> Call[P, R, JobHandle | None]: ...
    @overload
    def using(self, **given: Any) -> Call[P, R, JobHandle]: ...
    def using(self, **given: Any) -> Call[P, R, Any]:
        """Return the handler with options for one job.

        queue, priority, max_attempts, backoff: instead of the handler's own.  delay: seconds (or "5m", or a
        timedelta); at: an aware datetime.  tags: names to find the job by.  concurrency_group, concurrency_limit:
        runs of the group at a time.  cost_units: of the budgets of its queue and group.  rate_limit: (starts,
        seconds), counted by rate_key.  connection: the caller's
        SQLAlchemy Session or Connection or psycopg connection; the job lives and dies with its transaction.
        unique: only one job of this payload, or unique_key: of this key.  unique_until: "end" of that job (the
        default) or its "start", or unique_for: seconds from its enqueue.  on_duplicate: "return" the job that
        has the key (the default), "replace" it if it is pending, raise an "error", or "skip": None is returned.
        unique_key wins over a handler's own unique=True; unique=False writes a job without a key.
        """
        return Call(self, JobOptions.parse(given))


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of one job; None leaves the handler's setting, or the default, in place."""

    queue: str | None = None
    priority: Priority | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    delay_s: float | None = None
    at: datetime | None = None
    tags: tuple[str, ...] = ()
    unique: bool | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    unique_for_s: float | None = None
    on_duplicate: str | None = None
    limits: Limits = NO_LIMITS
    connection: Any = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> JobOptions:
        """Check options as a caller gives them; raise UsageError naming the option and the value."""
        known: dict[str, Callable[[Any], Any]] = {
            "queue": check_queue,
            "priority": check_priority,
            "max_attempts": check_attempts,
            "backoff": Backoff.parse,
            "delay": check_delay,
            "at": check_instant,
            "tags": _tags,
            "unique": check_unique,
            "unique_key": check_unique_key,
            "unique_until": check_until,
            "unique_for": check_for,
            "on_duplicate": check_on_duplicate,
            "connection": lambda connection: connection,
        }
        parsed: dict[str, Any] = {}
        if any(name in given for name in LIMITS):
            parsed["limits"] = limits_of({name: given.get(name) for name in LIMITS})
        for option, value in given.items():
            if option in LIMITS:
                continue
            if option not in known:
                raise UsageError(
                    f"a job has no option {option!r}", f"options are {', '.join((*known, *LIMITS))}"
                )
            if value is not None:
                parsed[_FIELDS.get(option, option)] = _named(option, known[option], value)
        if "delay_s" in parsed and "at" in parsed:
            raise UsageError("delay and at exclude each other", "give one of them")
        check_scope(parsed)
        check_keyed(parsed)
        return cls(**parsed)


_FIELDS = {"delay": "delay_s", "unique_for": "unique_for_s"}
PLAIN = JobOptions()


class Call(Generic[P, R, H]):
    """A handler together with options for the jobs about to be written."""

    def __init__(self, handler: Handler[P, R], given: JobOptions) -> None:
        self._handler = handler
        self._options = given

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> H:
        """Write a job; the arguments are checked against the signature first."""
        handler = self._handler
        payload = handler.codec.encode(args, kwargs, handler.app.settings.payload_limit)
        handle: H = handler.app.write(self._template(), self._options.connection, payload)
        return handle

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> JobHandles:
        """Write a job for each mapping of named arguments, all or nothing, streamed with COPY.

        Of unique jobs, those left out by on_duplicate="skip" have no handle among those returned.
        """
        handler = self._handler
        limit = handler.app.settings.payload_limit
        blank = self._template()
        encode = handler.codec.encode
        jobs = ((blank, _placed(encode, payload, limit, place)) for place, payload in enumerate(payloads))
        return handler.app.write_many(jobs, self._options.connection)

    def _template(self) -> NewJob:
        """What the job is like, apart from its payload; kept for the calls without options."""
        handler = self._handler
        kept = handler.template
        if self._options is PLAIN and kept is not None and kept[0] is handler.app.settings:
            return kept[1]
        job = new_job(handler.app, handler.name, "{}", self._options, handler.options)
        if self._options is PLAIN:
            handler.template = handler.app.settings, job
        return job


OURS = "queuety."  # in front of the names of handlers that are built in


def own_name(name: str) -> str:
    """Return the name of an application's handler, or raise UsageError if it is one of ours."""
    if name.startswith(OURS):
        raise UsageError(
            f"the handler name {name!r} begins with {OURS}, as those do that are built in", "choose another"
        )
    return name


def new_job(app: Queuety, name: str, payload: str, given: JobOptions, own: Options | None) -> NewJob:
    """A job ready to be written: the options given win over the handler's own, those over the settings."""
    own_name(name)
    own = own or Options()
    backoff = given.backoff or own.backoff
    attempts = given.max_attempts or own.max_attempts or app.settings.max_attempts
    return NewJob(
        handler=name,
        payload=payload,
        queue=given.queue or own.queue,
        priority=own.priority if given.priority is None else given.priority,
        max_attempts=attempts,
        delay_s=given.delay_s,
        at=given.at,
        tags=given.tags,
        backoff=backoff.to_json() if backoff else None,
        limits=merged(name, given.limits, own.limits).to_json(),
        **unique_part(given, own),
    )


def check_priority(value: object) -> Priority:
    """A priority by name or by number."""
    if isinstance(value, Priority):
        return value
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 3:
        return Priority(value)
    names = ", ".join(member.name.lower() for member in Priority)
    raise UsageError(f"there is no priority {value!r}", f"priorities are {names}")


def check_attempts(value: object) -> int:
    return check_whole("max_attempts", value, 1, _MAX_ATTEMPTS)


def check_delay(value: object) -> float:
    """Seconds from now as a number, "5m" or a timedelta; what lies in the past means now."""
    return max(0.0, seconds(value, minimum=-CENTURY_S))


def check_instant(value: object) -> datetime:
    """An aware point in time."""
    if not isinstance(value, datetime):
        raise UsageError(f"at={value!r} is no datetime", "give an aware datetime")
    if value.utcoffset() is None:
        raise UsageError(
            f"at={value!r} has no time zone", "give an aware datetime, e.g. datetime.now(timezone.utc)"
        )
    if value.year == 1:
        return _LONG_AGO  # what lies in the past means now, and the database begins a day later than Python
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"at={value!r} is beyond the year 9999", "give an earlier time") from None


def _named(option: str, check: Callable[[Any], Any], value: object) -> Any:
    try:
        return check(value)
    except UsageError as error:
        prefix = "" if error.message.startswith(option) else f"{option}: "
        raise type(error)(prefix + error.message, error.hint) from None


def _placed(encode: Any, payload: object, limit: int, place: int) -> str:
    if not isinstance(payload, Mapping):
        raise UsageError(f"item {place} of a bulk enqueue is no mapping of named arguments: {payload!r:.80}")
    try:
        text: str = encode((), payload, limit)
    except UsageError as error:
        raise type(error)(f"item {place}: {error.message}", error.hint) from None
    return text


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"tags={value!r} is no list of names")
    return tuple(dict.fromkeys(check_name("tag", tag) for tag in value))


def _timeout(value: object) -> float:
    return seconds(value, maximum=_LONGEST_TIMEOUT_S)
