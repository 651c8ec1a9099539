"""From settings and a plan to a pool that runs, and back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from queuety import loading
from queuety.errors import UsageError
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.process.plan import Plan
    from queuety.process.supervisor import Summary

log = logging.getLogger("queuety.pool")


@dataclass(frozen=True, slots=True)
class Left:
    """Pending jobs of a pool's queues: still due, due later, waiting for something else, by paused queue."""

    due: int = 0
    later: int = 0
    parked: int = 0
    paused: dict[str, int] = field(default_factory=dict)


def run(
    settings: Settings, preload: bool, tick: Callable[[list[int]], None] | None, **plan: Any
) -> tuple[Summary, Left]:
    """Check, raise the pool and wait for its end; returns what it did, and what a one-shot pool has left."""
    if not settings.app:
        raise UsageError(
            "no application is named",
            "give --app module:attribute, QUEUETY_APP, app in queuety.toml or in [tool.queuety] of pyproject.toml",
        )
    loading.split(settings.app)
    from queuety.cli import preflight
    from queuety.process.output import protect
    from queuety.process.plan import DRY, Mode, Plan
    from queuety.process.supervisor import Summary, Supervisor

    directory = Path.cwd()
    streams = sys.stdout, sys.stderr
    protect()
    try:
        fires = plan.get("mode") is Mode.WORK
        with _stoppable(), preflight.checked(settings, directory, schedules=fires) as checked:
            load = _loader(settings.app, checked.settings, directory)
            if preload:
                app = load()
                load = lambda: app  # noqa: E731 - imported once, here, for all workers
            url = checked.settings.database_url or ""
            ready = Plan(url=url, load=load, settings=checked.settings, preload=preload, **plan)
            preflight.warn_of_connections(
                checked, ready.most, "--max-workers" if ready.limits else "--workers"
            )
            summary = Supervisor(ready, on_tick=tick).run()
            over = summary.reason.endswith("s are over")
            ended = ready.mode != "work" and (over or summary.reason in (DRY, "done"))
            # One that was stopped leaves at once, whatever the database does.
            return summary, (_left(ready) if ended else None) or Left(later=summary.later)
    except _Stopped:
        return Summary(reason="SIGTERM"), Left()
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = streams  # our own words that cannot be written are an error again


def _loader(target: str, settings: Settings, directory: Path) -> Callable[[], Queuety]:
    def load() -> Queuety:
        app = loading.load(target, directory)
        loading.bind(app, settings)
        return app

    return load


def _left(plan: Plan) -> Left | None:
    """Look what is left; None if nobody can tell. The pool has ended: this process may talk to the database."""
    from queuety.store import connect, queues

    try:
        with connect.connect(plan.url) as conn:
            rows = [row for row in queues.listing(conn) if row.name in plan.queues]
    except Exception as error:  # noqa: BLE001 - what was done has been done, and is told
        log.debug("what is left cannot be told: %s", error)
        return None
    return Left(
        due=sum(row.due for row in rows if not row.paused) if plan.mode == "flush" else 0,
        later=sum(row.later for row in rows if not row.paused),
        parked=sum(row.parked for row in rows),
        paused={row.name: row.due + row.later for row in rows if row.paused},
    )


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Let what handlers print go to standard error: standard output is for our JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _Stopped(BaseException):
    """SIGTERM before the pool was up: nothing has begun, so leave at once and cleanly."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are leaving: a second one must not disturb that
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        # Who began with us would still leave with 0 at once; but now there is something to say, and a code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if callable(before) else before)
