"""The small application of `basic`, with handlers that say how far they are."""

from __future__ import annotations

import time

from queuety import Context
from tests.apps.basic import app, note, noted
from tests.apps.parts import part

__all__ = ["app"]


@app.job
def steps(ctx: Context, count: int, pause: float = 0.0) -> int:
    """Hand out so many parts: each is an event, however quickly they come."""
    with noted(ctx):
        for step in range(count):
            part(ctx, {"part": step})
            time.sleep(pause)
        return count


@app.job
def reports(ctx: Context, times: int) -> None:
    """Report progress so many times, as quickly as can be."""
    with noted(ctx):
        for step in range(times):
            ctx.progress(step + 1, times, "counting")


@app.job
def polite(ctx: Context) -> None:
    """Stop when told to."""
    note(ctx, "start")
    while not ctx.should_stop():
        time.sleep(0.02)


@app.job
def stubborn(ctx: Context) -> None:
    """Swallow whatever would interrupt it."""
    note(ctx, "start")
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001
            continue


@app.job
def broken(ctx: Context, parts: int = 1) -> None:
    """Hand out something, then fail."""
    note(ctx, "start")
    for number in range(parts):
        part(ctx, {"attempt": ctx.job.attempt, "part": number})
    raise ValueError("on purpose")


@app.job
def atomic(ctx: Context) -> str:
    """Complete by a transaction of its own."""
    with noted(ctx):
        with ctx.transaction() as conn:
            conn.execute("SELECT 1")
        return "kept"


@app.job(timeout=0.3)
def slow(ctx: Context) -> None:
    note(ctx, "start")
    time.sleep(60)


@app.job
def paced(ctx: Context, seconds: float, fails: bool = False) -> int:
    """Hand out parts, each with its progress, as quickly as can be."""
    count, until = 0, time.monotonic() + seconds
    found: list[int] = []
    while time.monotonic() < until:
        count += 1
        found[:] = [count]
        ctx.partial({"found": found})
        ctx.progress(count)
    if fails:
        raise ValueError("on purpose")
    return count


@app.job
def parts_of_a_transaction(ctx: Context) -> None:
    """Hand out parts before and in a transaction that completes the job."""
    ctx.partial({"part": 0})
    ctx.partial({"part": 1})
    with ctx.transaction():
        ctx.partial({"part": 2})


@app.job
def looks(ctx: Context) -> None:
    """Hand out two parts and a progress, then only ask whether to stop."""
    ctx.partial({"part": 0})
    ctx.partial({"part": 1})
    while not ctx.should_stop():
        time.sleep(0.02)


@app.job
def odd_progress(ctx: Context) -> None:
    for told in (("a", "b", 3), (-5, 2), (5, 2), (True, float("nan"), "x"), (10**400, 1, "y"), (1, 0)):
        ctx.progress(*told)
