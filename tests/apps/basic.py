"""A small application whose handlers write a ledger of their own, so that tests need not trust the product.

QUEUETY_TEST_LEDGER names the file. A line is `job attempt pid start|end time`; time is of the monotonic clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queuety import Context, Permanent, Queuety, Retry, Snooze

app = Queuety()


def note(ctx: Context, what: str) -> None:
    """Append one line; a single write, so that lines of many processes never mix."""
    path = os.environ.get("QUEUETY_TEST_LEDGER")
    if not path:
        return
    line = f"{ctx.job.id} {ctx.job.attempt} {os.getpid()} {what} {time.monotonic():.6f}\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


@contextmanager
def noted(ctx: Context) -> Iterator[None]:
    """Note the start, and the end if the block is left without an error."""
    note(ctx, "start")
    yield
    note(ctx, "end")


@app.job
def ok(ctx: Context) -> None:
    with noted(ctx):
        pass


@app.job
def echo(ctx: Context, value: Any = None) -> Any:
    with noted(ctx):
        return value


@app.job
def add(ctx: Context, a: int, b: int) -> int:
    with noted(ctx):
        return a + b


@app.job
def sleep(ctx: Context, seconds: float) -> None:
    with noted(ctx):
        time.sleep(seconds)


@app.job
def spin(ctx: Context, seconds: float) -> None:
    """Use the processor without ever letting go of it."""
    with noted(ctx):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass


@app.job
def fail(ctx: Context, message: str = "on purpose") -> None:
    note(ctx, "start")
    raise ValueError(message)


@app.job
def fail_late(ctx: Context, seconds: float) -> None:
    note(ctx, "start")
    time.sleep(seconds)
    raise ValueError("on purpose")


@app.job
def fail_until(ctx: Context, attempt: int) -> int:
    """Fail until the attempt of that number."""
    with noted(ctx):
        if ctx.job.attempt < attempt:
            raise ValueError(f"attempt {ctx.job.attempt}")
        return ctx.job.attempt


@app.job
def permanent(ctx: Context) -> None:
    note(ctx, "start")
    raise Permanent("no such user")


@app.job
def retry(ctx: Context, after: float = 0.0) -> None:
    note(ctx, "start")
    raise Retry("come back", after=after)


@app.job
def snooze(ctx: Context, seconds: float) -> None:
    note(ctx, "start")
    raise Snooze(seconds)


@app.job
def leave(ctx: Context, code: int = 0) -> None:
    """End the process without a word."""
    note(ctx, "start")
    os._exit(code)


@app.job
def kill_self(ctx: Context, number: int = 9) -> None:
    note(ctx, "start")
    os.kill(os.getpid(), number)
    time.sleep(60)


@app.job
def say(ctx: Context, text: str = "hello", times: int = 1) -> None:
    with noted(ctx):
        for _ in range(times):
            print(text)


@app.job
def follow_up(ctx: Context, depth: int) -> None:
    """Enqueue the next one until depth is 0."""
    with noted(ctx):
        if depth:
            follow_up.enqueue(depth=depth - 1)


@app.job(queue="other", priority="high", max_attempts=7)
def elsewhere(ctx: Context) -> None:
    with noted(ctx):
        pass
