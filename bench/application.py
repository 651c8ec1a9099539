"""The application that the pools run: as small as one can be."""

from __future__ import annotations

import os
import signal
import time

from queuety import Context, Queuety

app = Queuety()
_STAMPS = int(os.environ.get("BENCH_STAMPS", "-1"))
_LEDGER = int(os.environ.get("BENCH_LEDGER", "-1"))


@app.job
def noop() -> None:
    """Do nothing."""


@app.job
def stamp(n: int) -> None:
    """Say when the run began."""
    os.write(_STAMPS, f"{n} {time.monotonic_ns()}\n".encode())


@app.job(backoff=[0], max_attempts=2)
def die(n: int, context: Context) -> None:
    """Say when the run began; kill the own worker at the first attempt."""
    os.write(_STAMPS, f"{n} {time.monotonic_ns()}\n".encode())
    if context.job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job
def busy(ms: float, context: Context) -> None:
    """Note the start, sleep, note the end."""
    _note(context, "start")
    time.sleep(ms / 1000)
    _note(context, "end")


@app.job
def mark(context: Context) -> None:
    """Note the start."""
    _note(context, "start")


def _note(context: Context, what: str) -> None:
    # One write to a file that is appended to: lines of many processes never mix.
    os.write(_LEDGER, f"{context.job.id} {os.getpid()} {what} {time.monotonic_ns()}\n".encode())
