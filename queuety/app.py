"""Queuety: the registry of handlers and the callers' verbs."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from queuety import tracing, units
from queuety.errors import PayloadError, QueuetyError, UsageError
from queuety.handle import JobHandle, JobHandles
from queuety.handler import SETTINGS, Handler, JobOptions, new_job, options, own_name
from queuety.limits import new_limits
from queuety.listeners import Callback, Listeners, check_kinds
from queuety.model import Event, Job, NewJob, NewSchedule, State, StreamEvent
from queuety.names import check_name
from queuety.payload import dumps
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.context import Context
    from queuety.features.doctor import Check
    from queuety.features.recover import Recovered
    from queuety.features.why import Explanation
    from queuety.lone import LoneWorker
    from queuety.schedule import Declaration
    from queuety.schedules import Schedules
    from queuety.store.connect import Connection
    from queuety.store.meters import Meter
    from queuety.store.metrics import Metrics
    from queuety.store.pool import Pool
    from queuety.store.stats import Stats
    from queuety.store.verbs import Purged
    from queuety.watching.listener import Listener
    from queuety.watching.viewer import AsyncStream, Stream
    from queuety.webhooks import Webhooks

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callback)


class Decorator(Protocol):
    """What `@app.job(…)` returns: for type checkers, a leading Context is no argument of the job."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class ScheduleDecorator(Protocol):
    """What `@app.schedule(…)` returns: it takes a handler, or a function, which it makes one."""

    @overload
    def __call__(self, handler: Handler[P, R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class Queuety:
    """An application: handlers by name, and the database where their jobs live.

    database_url: libpq URL or keyword string. None: QUEUETY_DATABASE_URL, else DATABASE_URL, else the embedded
    PostgreSQL, which is started or joined at the first use.
    Nothing is connected before it is needed. One object may be used by many threads and survives a fork.
    """

    def __init__(self, database_url: str | None = None, **given: object) -> None:
        if database_url is not None:
            given["database_url"] = database_url
        self.settings = Settings.load(given)
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._declared: dict[str, Declaration] = {}
        self.listeners = Listeners()  # of its schedules' events
        self._url: str | None = self.settings.database_url
        self._embedded: Any = None
        self._pool: Pool | None = None
        self._listener: Listener | None = None
        self._lock = threading.Lock()

    # ── handlers ──────────────────────────────────────────────────────────────────────────────────

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        """All registered handlers by name."""
        return self._handlers

    @overload
    def job(self, target: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def job(self, target: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def job(self, /, **settings: Any) -> Decorator: ...
    def job(self, target: Any = None, /, **settings: Any) -> Any:
        """Register a function, or a class with `run`, as the handler of jobs.

        name: instead of the function's own.  queue, priority, max_attempts.  timeout: seconds, 0 = no limit.
        backoff: "exponential", "linear", "fixed", a list of seconds, or a Backoff.  retry: "all", "transient" or
        a function of the exception.  result_limit: bytes of JSON kept of a result.  unique: one job of a payload at
        a time, until its end; unique_until: "start", or unique_for: seconds from its enqueue, instead (without
        unique=True only for the jobs that are given a unique_key).
        concurrency_limit: runs at a time over all hosts, counted by concurrency_group (default: the handler's name).
        cost_units: what a run takes of the cost budgets of its queue and group, default 1.
        rate_limit: (starts, seconds), at most so many in any such window over all hosts, counted by rate_key
        (default: the handler's name).
        """
        if target is None:
            return lambda function: self._register(function, settings)
        return self._register(target, settings)

    def _register(self, target: Any, settings: dict[str, Any]) -> Handler[..., Any]:
        if inspect.isclass(target):
            settings = {**_class_settings(target), **settings}
        function = _function(target)
        name = own_name(check_name("handler", settings.pop("name", None) or target.__name__))
        if name in self._handlers:
            raise UsageError(f"there are two handlers {name!r}", "give one of them name=…")
        handler: Handler[..., Any] = Handler(self, function, name, options(settings))
        self._handlers[name] = handler
        return handler

    # ── schedules ─────────────────────────────────────────────────────────────────────────────────

    @overload
    def schedule(self, handler: str, /, *, cron: str, **settings: Any) -> None: ...
    @overload
    def schedule(self, handler: str, /, *, every: str | float | timedelta, **settings: Any) -> None: ...
    @overload
    def schedule(self, cron: str, /, **settings: Any) -> ScheduleDecorator: ...
    @overload
    def schedule(self, /, **settings: Any) -> ScheduleDecorator: ...
    def schedule(self, target: Any = None, /, **settings: Any) -> Any:
        """Declare a schedule: jobs of a handler, enqueued at every tick by the pools or a scheduler.

        As a decorator with a cron expression, `@app.schedule("0 3 * * *", timezone="Asia/Seoul")`, or an interval,
        `@app.schedule(every="30 minutes")`: of a handler, or of a function, which becomes one (its settings may stand
        here too). Or by the handler's name: `app.schedule("add", cron="0 3 * * *", payload={"a": 1, "b": 2})`.

        name: the schedule's key; the handler's name if there is one schedule only.  cron: five fields, or six with
        seconds first.  every: seconds, "30 minutes", a timedelta.  timezone: an IANA name; without it the setting
        `timezone`, else UTC.  payload: named arguments of each job.  start, end: aware times; start <= tick < end.
        jitter: each job is due up to that much later.  overlap: while the job of the tick before has not ended,
        "allow" (the default), "skip" the tick, or "buffer" one until then.  missed: ticks whose time passed unseen
        run "once" (the default), never ("skip"), or "all" up to missed_limit, default 100.
        Options of its jobs as for `Handler.using`, but for delay, at and connection; tags gain `schedule:NAME`.

        All is checked at once, without the database. It is written when a pool or a scheduler starts, or by
        `app.schedules.sync()`; a declaration that is gone is retired then.
        """
        if target is not None and not isinstance(target, str):
            raise UsageError(
                f"@app.schedule over {getattr(target, '__name__', target)!r} says not when",
                'give a cron expression, @app.schedule("0 3 * * *"), or every="30 minutes"',
            )
        from queuety import schedule  # here: an application without schedules needs no cron

        if target is not None and (settings.get("cron") is not None or settings.get("every") is not None):
            self._declare(target, settings)
            return schedule.by_name_only(target)
        if target is not None:
            settings["cron"] = schedule.cron_alone(target)
        return lambda function: self._schedule(function, settings)

    def _schedule(self, target: Any, settings: dict[str, Any]) -> Handler[..., Any]:
        from queuety import schedule

        if not isinstance(target, Handler):
            settings, of_handler = schedule.split(settings)
            target = self._register(target, of_handler)
        elif self._handlers.get(target.name) is not target:
            raise UsageError(f"{target!r} belongs to another application", "use that one's schedule")
        handler: Handler[..., Any] = target
        self._declare(handler.name, settings)
        return handler

    def _declare(self, handler: str, settings: dict[str, Any]) -> None:
        from queuety import schedule

        one = schedule.declare(self, handler, settings)
        if one.key in self._declared:
            raise UsageError(f"there are two schedules {one.key!r}", "give one of them name=…")
        self._declared[one.key] = one

    @overload
    def on_schedule(self, callback: F, /) -> F: ...
    @overload
    def on_schedule(self, /, *events: str) -> Callable[[F], F]: ...
    def on_schedule(self, /, *events: Any) -> Any:
        """Register a callback for what becomes of schedules' ticks: `@app.on_schedule("fail")`.

        events: "run" (a tick's job is written), "skip", "done" (the job completed), "fail"; several, or none for all.
        It is called with a ScheduleEvent, in the process of `queuety --app … scheduler` and nowhere else: each event
        once over all schedulers, or never, if that process dies in between or a pool ticked in its place. In a thread
        of its own, one call at a time: what it raises is logged, and a tick never waits for it.
        """
        if len(events) == 1 and not isinstance(events[0], str):
            self.listeners.add((), events[0])
            return events[0]
        check_kinds(events)

        def register(callback: F) -> F:
            self.listeners.add(events, callback)
            return callback

        return register

    @property
    def declared(self) -> list[NewSchedule]:
        """The schedules that the code declares, as they are to be written; UsageError if one lacks its handler."""
        if not self._declared and self.settings.timezone is None:
            return []
        from queuety import schedule

        return schedule.declared(self, self._declared.values())

    @property
    def zoneless(self) -> list[str]:
        """Names of declared cron schedules that are read in UTC because neither they nor the setting name a zone."""
        if self.settings.timezone is not None:
            return []
        return [key for key, one in self._declared.items() if one.zoneless]

    @property
    def schedules(self) -> Schedules:
        """Schedules in the database: add, remove, pause, resume, run, preview and look at them."""
        from queuety.schedules import Schedules

        return Schedules(self)

    @property
    def webhooks(self) -> Webhooks:
        """Who is told of the ends of jobs over HTTP: add, remove, test, rotate, pause, resume and look at them."""
        from queuety.webhooks import Webhooks

        return Webhooks(self)

    # ── enqueue ───────────────────────────────────────────────────────────────────────────────────

    @overload
    def enqueue(
        self,
        handler: str,
        payload: Mapping[str, Any] | None = None,
        *,
        on_duplicate: Literal["skip"],
        **given: Any,
    ) -> JobHandle | None: ...
    @overload
    def enqueue(self, handler: str, payload: Mapping[str, Any] | None = None, **given: Any) -> JobHandle: ...
    def enqueue(self, handler: str, payload: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Write a job by its handler's name, which this application need not have.

        payload: named arguments, strict JSON. Options as for `Handler.using`.
        """
        own = self._handlers.get(check_name("handler", handler))
        asked = JobOptions.parse(given)
        text = self.payload_text(own, payload or {})
        return self.write(
            new_job(self, handler.strip(), text, asked, own.options if own else None), asked.connection
        )

    def enqueue_many(
        self, jobs: Iterable[tuple[str, Mapping[str, Any]]], *, connection: Any = None
    ) -> JobHandles:
        """Write a job for each (handler's name, payload), all or nothing, streamed with COPY."""
        nothing = JobOptions()

        templates: dict[str, NewJob] = {}

        def stream() -> Iterable[tuple[NewJob, str]]:
            for place, item in enumerate(jobs):
                try:
                    name, payload = item
                except (TypeError, ValueError):
                    raise UsageError(f"item {place} is no pair of a handler's name and a payload") from None
                try:
                    own = self._handlers.get(check_name("handler", name))
                    text = self.payload_text(own, payload)
                except UsageError as error:
                    raise type(error)(f"item {place}: {error.message}", error.hint) from None
                if name not in templates:
                    own_options = own.options if own else None
                    templates[name] = new_job(self, name.strip(), "{}", nothing, own_options)
                yield templates[name], text

        return self.write_many(stream(), connection)

    def payload_text(self, own: Handler[..., Any] | None, payload: Mapping[str, Any]) -> str:
        """A payload as JSON text, checked against its handler's signature if that is ours."""
        if not isinstance(payload, Mapping):
            raise UsageError(f"a payload is a mapping of named arguments, not {type(payload).__name__}")
        limit = self.settings.payload_limit
        if own is not None:
            try:
                return own.codec.encode((), payload, limit)
            except PayloadError as refused:
                try:  # it may be JSON already: "2030-01-31" where the handler takes a date
                    own.codec.check(dict(payload))
                except QueuetyError:
                    raise refused from None
        return dumps(dict(payload), limit_bytes=limit, what="payload")

    def write(self, job: NewJob, connection: Any = None, payload: str | None = None) -> Any:
        """Write a checked job, with `payload` for its own; the road that all enqueue calls take.

        Returns its handle; None if it was left out.
        """
        from queuety.store import enqueue

        if (trace := tracing.current()) is not None:
            job = replace(job, backoff=tracing.carrying(job.backoff, trace))
        if connection is not None:
            job_id = enqueue.one(connection, job, payload)
        else:
            with self._borrow() as conn:
                job_id = enqueue.one(conn, job, payload)
        return None if job_id is None else JobHandle(self, job_id)

    def write_many(self, jobs: Iterable[tuple[NewJob, str]], connection: Any = None) -> JobHandles:
        """Write checked jobs, as pairs of template and payload; the road that all bulk calls take."""
        from queuety.store import enqueue

        if (trace := tracing.current()) is not None:
            jobs = _all_in(trace, jobs)
        if connection is not None:
            return JobHandles(self, enqueue.many(connection, jobs))
        with self._borrow() as conn:
            return JobHandles(self, enqueue.many(conn, jobs))

    # ── look ──────────────────────────────────────────────────────────────────────────────────────

    def find(self, job_id: int) -> Job:
        """The job with this id, in any state. Raises JobNotFound."""
        from queuety.store import search

        with self._borrow() as conn:
            return search.find(conn, job_id)

    def jobs(
        self,
        *,
        state: State | str | None = None,
        queue: str | None = None,
        handler: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> list[Job]:
        """Jobs of all states, newest first. after: the last id of the page before."""
        from queuety.store import search

        with self._borrow() as conn:
            return search.jobs(
                conn, state=state, queue=queue, handler=handler, tag=tag, limit=limit, after=after
            )

    def events(self, job_id: int, after: int = 0) -> list[Event]:
        """A job's journal, events with an id above `after`. Raises JobNotFound."""
        from queuety.store import events, search

        with self._borrow() as conn:
            found = events.read(conn, job_id, after)
            if not found:
                search.find(conn, job_id)
            return found

    def history(self, job_id: int, *, after: str | None = None, limit: int = 1000) -> list[StreamEvent]:
        """The events of a job's stream so far, without waiting for more. Raises JobNotFound.

        after: the `event_id` of the last event seen.  limit: so many at most, the oldest of them.
        """
        from queuety.watching import stream

        with self._borrow() as conn:
            return stream.history(conn, job_id, after, limit)

    def stream(
        self,
        jobs: int | JobHandle | Iterable[int | JobHandle],
        *,
        after: str | Mapping[int, str] | None = None,
    ) -> Stream:
        """Follow jobs: an iterator of their events as they happen, from the beginning or behind one of them.

        It ends after the final event of the last job; leave it before by `close()` or as a context. A stream has the
        same events with the same ids for everybody. However many are open, a process reads for all of them with one
        connection and one thread, and for none with nothing.

        jobs: one or several, by id or handle.  after: the `event_id` of the last event seen; of several jobs a
        mapping from a job's id to that.
        The first read raises JobNotFound, or DatabaseUnreachable; later losses of the database are waited for.
        """
        from queuety.watching.viewer import Stream, cursors

        return Stream(self._listening(), cursors(_ids(jobs), after))

    def astream(
        self,
        jobs: int | JobHandle | Iterable[int | JobHandle],
        *,
        after: str | Mapping[int, str] | None = None,
    ) -> AsyncStream:
        """As `stream`, for `async for` in a running event loop, which it never blocks; leave it by `aclose()`."""
        from queuety.watching.viewer import AsyncStream, cursors

        return AsyncStream(self._listening(), cursors(_ids(jobs), after))

    def _listening(self) -> Listener:
        """The listener of this process."""
        from queuety.watching.listener import Listener

        with self._lock:
            if self._listener is None or self._listener.pid != os.getpid():
                self._listener = Listener(lambda: self.url)
            return self._listener

    def stats(self) -> Stats:
        """How many jobs each queue holds in which state, and how long the oldest has waited."""
        from queuety.store import stats

        with self._borrow() as conn:
            return stats.stats(conn)

    def metrics(
        self, *, window: float | timedelta = 3600.0, pending_longer_than: float | timedelta = 300.0
    ) -> Metrics:
        """What each handler has come to within the last `window`, and how many of its jobs have been pending for long.

        window, pending_longer_than: seconds, or a timedelta.
        """
        from queuety.store import metrics

        longest = 366 * 86_400.0
        window_s = units.seconds(window, minimum=1, maximum=longest, what="window")
        longer_s = units.seconds(pending_longer_than, what="pending_longer_than")
        with self._borrow() as conn:
            return metrics.metrics(conn, window_s, longer_s)

    def why(self, job_id: int) -> Explanation:
        """Say why a job does not run now, or that it does, or how it ended. Raises JobNotFound."""
        from queuety.features import why

        with self._borrow() as conn:
            settings = self.settings
            queues, groups = settings.resource_queue_cost_budgets, settings.resource_group_cost_budgets
            return why.explain(conn, job_id, queues or {}, groups or {})

    def doctor(self) -> list[Check]:
        """Look at everything that can be wrong with the installation; raises nothing, not even for no database."""
        from queuety.features import doctor

        return doctor.examine(lambda: self.url)

    # ── act ───────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, job_id: int) -> State:
        """Cancel a job. A pending one is cancelled at once; a running one is told to stop and ends soon.

        Returns the state after the call: cancelled, or processing while the run is being ended. A job that was
        cancelled already stays so. Raises WrongState for a completed or buried one, JobNotFound.
        """
        from queuety.store import verbs

        with self._borrow() as conn:
            return verbs.cancel(conn, job_id)

    def retry(self, job_id: int) -> JobHandle:
        """Send a buried or cancelled job back to pending with a fresh budget of attempts; its history stays."""
        from queuety.store import verbs

        with self._borrow() as conn:
            verbs.retry(conn, job_id)
        return JobHandle(self, job_id)

    def bury(self, job_id: int, reason: str = "buried by hand") -> None:
        """Bury a pending job. Raises WrongState for any other."""
        from queuety.store import verbs

        with self._borrow() as conn:
            verbs.bury(conn, job_id, reason)

    def delete(self, job_id: int) -> None:
        """Delete a job that is not running, with its journal. Raises WrongState for a running one."""
        from queuety.store import verbs

        with self._borrow() as conn:
            verbs.delete(conn, job_id)

    def retry_buried(
        self, *, handler: str | None = None, queue: str | None = None, dry_run: bool = False
    ) -> int:
        """Retry all buried jobs, or those of one handler or queue; returns how many."""
        from queuety.store import verbs

        with self._borrow() as conn:
            return verbs.retry_buried(conn, handler=handler, queue=queue, dry_run=dry_run)

    def purge(
        self,
        *,
        older_than: float = 0.0,
        state: State | str | None = None,
        queue: str | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Delete jobs that ended more than `older_than` seconds ago; state, queue: only those."""
        from queuety.store import verbs

        with self._borrow() as conn:
            return verbs.purge(conn, older_than_s=older_than, state=state, queue=queue, dry_run=dry_run)

    def pause(self, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Pause a queue: once this returns, no claim takes from it. What runs goes on. until: an aware time."""
        from queuety.store import queues

        with self._borrow() as conn:
            queues.pause(conn, queue, reason=reason, until=until)

    def resume(self, queue: str) -> bool:
        """Let a paused queue go on; False if it was not paused."""
        from queuety.store import queues

        with self._borrow() as conn:
            return queues.resume(conn, queue)

    def limit(
        self,
        key: str,
        *,
        concurrency: int | None = None,
        budget: int | None = None,
        rate_limit: tuple[int, float] | None = None,
    ) -> Meter:
        """Set limits of a key for all hosts at once, while workers run; they win over what jobs and settings say.

        key: "group:NAME", "queue:NAME" or "rate:NAME".  concurrency: of a group; 0 stops it.  budget: cost units of
        a group or queue.  rate_limit: (starts, seconds).  Without any it only says how the key stands; raises
        MeterNotFound if it is neither set nor in use.
        """
        from queuety.store import claims, meters

        given = new_limits(concurrency, budget, rate_limit)
        with self._borrow() as conn:
            if given:
                meters.put(conn, key, given)
            return meters.find(conn, key, claims.budgets(self.settings))

    def unlimit(self, key: str) -> bool:
        """Forget what was set for a key: its jobs and the settings decide again. False if nothing was set."""
        from queuety.store import meters

        with self._borrow() as conn:
            return meters.reset(conn, key)

    def meters(self, limit: int = 1000) -> list[Meter]:
        """The limited keys that are set or in use: limits, what runs, what is parked and for how long."""
        from queuety.store import claims, meters

        with self._borrow() as conn:
            return meters.listing(conn, claims.budgets(self.settings), limit=limit)

    def recover(self) -> Recovered:
        """Settle the runs of workers that are gone; running pools do it by themselves."""
        from queuety.features.recover import recover
        from queuety.policy.retry import Backoff

        with self._borrow() as conn:
            return recover(conn, Backoff.parse(self.settings.retry_backoff))

    def worker(self, queues: str | Sequence[str] = "default") -> LoneWorker:
        """A worker in this process: `.flush()` runs all that is due, `.run_once()` at most one job."""
        from queuety.lone import LoneWorker

        return LoneWorker(self, queues)

    # ── database ──────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """The database's URL; starts or joins the embedded PostgreSQL if no other is configured."""
        with self._lock:
            if self._url is None:
                self._url = self._start_embedded()
            return self._url

    def _start_embedded(self) -> str:
        from queuety import embedded
        from queuety.store import migrations

        self._embedded = embedded.start()
        atexit.register(self.close)
        migrations.migrate(self._embedded.url)
        return str(self._embedded.url)

    def connection(self) -> AbstractContextManager[Connection]:
        """Open an autocommit psycopg connection for the length of a block.

        Closed afterwards: locks, settings and roles must not reach whoever comes next, such as another job.
        """
        return self._borrow(lent=True)

    def _borrow(self, *, lent: bool = False) -> AbstractContextManager[Connection]:
        if self._pool is None:
            from queuety.store.pool import Pool

            url = self.url
            with self._lock:
                self._pool = self._pool or Pool(url)
        return self._pool.connection(lent=lent)

    def migrate(self) -> list[str]:
        """Bring the database's schema to this version; returns the revisions applied."""
        from queuety.store import migrations

        return migrations.migrate(self.url)

    def close(self) -> None:
        """Close the connections of this process and leave the embedded server, if it was joined."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        server, self._embedded = self._embedded, None
        if server is not None:
            self._url = None
            server.release()


def _ids(jobs: int | JobHandle | Iterable[int | JobHandle]) -> list[int]:
    """Ids of one job or of several; what is none is refused later."""
    many = [jobs] if isinstance(jobs, JobHandle | str) or not isinstance(jobs, Iterable) else jobs
    return [job.id if isinstance(job, JobHandle) else job for job in many]


def _class_settings(target: type) -> dict[str, Any]:
    """Settings given as class attributes."""
    return {name: getattr(target, name) for name in SETTINGS if hasattr(target, name)}


def _function(target: Any) -> Callable[..., Any]:
    """The function to run: the target itself, or `run` of a class without required arguments."""
    if not inspect.isclass(target):
        if not callable(target):
            raise UsageError(f"{target!r} is not callable", "decorate a function or a class with run")
        return target  # type: ignore[no-any-return]
    if not callable(getattr(target, "run", None)):
        raise UsageError(f"class {target.__name__} has no run method", "a class handler needs run(self, …)")
    try:
        return target().run  # type: ignore[attr-defined, no-any-return]
    except TypeError as error:
        raise UsageError(
            f"class {target.__name__} cannot be made without arguments: {error}", "a class handler takes none"
        ) from None


def _all_in(trace: dict[str, str], jobs: Iterable[tuple[NewJob, str]]) -> Iterator[tuple[NewJob, str]]:
    """These jobs, each carrying the trace; few templates serve many of them."""
    known: dict[int, tuple[NewJob, NewJob]] = {}
    for job, payload in jobs:
        before, traced = known.get(id(job), (None, None))
        if before is not job or traced is None:
            if len(known) > 1000:  # templates that are made for each job
                known.clear()
            traced = replace(job, backoff=tracing.carrying(job.backoff, trace))
            known[id(job)] = job, traced
        yield traced, payload
