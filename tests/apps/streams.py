"""The small application of `basic`, with handlers that say how far they are."""

from __future__ import annotations

import time

from queuety import Context
from tests.apps.basic import app, note, noted

__all__ = ["app"]


@app.job
def steps(ctx: Context, count: int, pause: float = 0.0) -> int:
    """Hand out so many parts: each is an event, however quickly they come."""
    with noted(ctx):
        for step in range(count):
            ctx.partial({"part": step})
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
    for part in range(parts):
        ctx.partial({"attempt": ctx.job.attempt, "part": part})
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
