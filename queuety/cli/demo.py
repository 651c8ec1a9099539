"""`demo`: all of it on one terminal."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import click

from queuety.cli import kinds, launch
from queuety.cli.invocation import current
from queuety.cli.output import say
from queuety.cli.pool import sentence

APPLICATION = "queuety.demo.application:app"


@click.command()
@click.option("--workers", type=kinds.WORKERS, default="2", show_default=True, help="Worker processes.")
@click.option("--max-time", type=kinds.SECONDS, default="0", help="Stop after that long; 0 = at Ctrl+C.")
def demo(workers: int, max_time: float) -> int:
    """Show Queuety at work: an embedded PostgreSQL, a sample application, a pool and a stream of jobs.

    Ctrl+C stops it cleanly. While it runs, look at it from another terminal.

    \b
    queuety demo
    queuety status
    """
    from queuety import embedded
    from queuety.demo.application import CRITICAL, DEFAULT, LOW
    from queuety.process.plan import Mode

    with embedded.start() as server:
        _migrate(server.url)
        say(f"PostgreSQL runs in {server.directory}; queues {CRITICAL}, {DEFAULT}, {LOW}; {workers} workers.")
        say(
            "From another terminal: queuety status, queuety jobs, queuety workers, queuety events ID --follow"
        )
        say("Ctrl+C stops it: what runs is finished first.")
        say("")
        with _stream(server.url):
            summary, left = launch.run(
                current().settings(app=APPLICATION, database_url=server.url),
                False,
                None,
                queues=(CRITICAL, DEFAULT, LOW),
                workers=workers,
                mode=Mode.WORK,
                name="demo",
                max_time_s=max_time,
            )
        say("")
        say(sentence(summary, left))
    return summary.code


def _migrate(url: str) -> None:
    """In a process of its own: this one forks the pool later, and has no database code until then."""
    command = [sys.executable, "-m", "queuety.cli.main", "--database-url", url, "db", "migrate"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _stream(url: str) -> Iterator[None]:
    """A process that enqueues; out of the terminal's reach, so that Ctrl+C is the pool's alone."""
    command = [sys.executable, "-m", "queuety.demo.stream", url]
    writer = subprocess.Popen(command, process_group=0)
    try:
        yield
    finally:
        writer.terminate()
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            writer.wait(5)
