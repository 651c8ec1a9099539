"""`scheduler`: a process of its own for the schedules."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from queuety import loading
from queuety.cli import kinds, preflight
from queuety.cli.invocation import current

if TYPE_CHECKING:
    from queuety.settings import Settings


@click.command()
@click.option("--name", type=kinds.SCHEDULER_NAME, help="The scheduler's name.  [default: the host's]")
@click.option("--max-time", type=kinds.SECONDS, default="0", help="Exit after that long; 0 = never.")
def scheduler(name: str | None, max_time: float) -> None:
    """Fire schedules, and do nothing else, until told to stop.

    Pools fire schedules by themselves; they leave it to a scheduler while there is one. It is for those who want
    ticks to be exact while pools are busy, or callbacks (@app.on_schedule). Several may run: each tick still makes one
    job. With --app it writes the schedules that the application declares and calls its callbacks; without, it fires
    what is there.

    TERM or Ctrl-C ends it with 0 within 2 seconds, whatever the database does; a second Ctrl-C at once, with 130. USR1
    logs how the schedules stand. HUP does not load new code: restart it.

    \b
    queuety --app shop:app scheduler
    queuety scheduler --name=spare
    """
    settings = current().settings()
    code = _run(settings, name or socket.gethostname(), max_time)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # whatever threads the application has left running


def _run(settings: Settings, name: str, max_time: float) -> int:
    """Check, and schedule until the end; returns the exit code."""
    if settings.timezone is not None:
        from queuety.schedule import default_zone

        default_zone(settings)
    app = loading.load(settings.app) if settings.app else None
    if app is not None:
        settings = loading.adopt(settings, loading.own_settings(app))
        loading.bind(app, settings)
        preflight.warn_of_zones(app.zoneless)
    declared = app.declared if app else None
    from queuety.process.keeper import FORGET_S
    from queuety.process.output import protect
    from queuety.process.scheduler import Duty, Scheduler

    with _database(settings) as settings:
        if app is not None:
            loading.bind(app, settings)
        url, silent_s = settings.database_url or "", max(2 * settings.stale_timeout, FORGET_S)
        protect()
        duty = Duty(url, name, declared, settings.app or "", silent_s, max_time)
        return Scheduler(duty, app.listeners if app else None).run()


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[Settings]:
    """Settings with a database that has been looked at; holds the embedded server, where that is the one."""
    if settings.database_url is not None:
        preflight.check_database(settings.database_url, embedded=False)
        yield settings
        return
    from queuety import embedded

    server = embedded.start()
    try:
        preflight.check_database(server.url, embedded=True)
        yield loading.adopt(settings, {"database_url": server.url})
    finally:
        server.release()
