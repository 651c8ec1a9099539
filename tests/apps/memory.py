"""Handlers that take memory, and really touch it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from queuety import Context
from tests.apps.basic import app, noted

__all__ = ["app"]

MB = 1 << 20
_KEPT: list[Any] = []


def touch(mb: int) -> bytearray:
    return bytearray(b"x") * (mb * MB)


@app.job
def take(ctx: Context, mb: int, seconds: float = 0.05) -> None:
    with noted(ctx):
        held = touch(mb)
        time.sleep(seconds)
        del held


@app.job
def big(ctx: Context, mb: int) -> None:
    with noted(ctx):
        held = touch(mb)
        time.sleep(0.05)
        del held


@app.job
def small(ctx: Context, mb: int, seconds: float = 0.05) -> None:
    with noted(ctx):
        held = touch(mb)
        time.sleep(seconds)
        del held


@app.job
def keep(ctx: Context, mb: int) -> None:
    """Grow the worker itself."""
    with noted(ctx):
        _KEPT.append(touch(mb))


@app.job(max_attempts=2, backoff=[0])
def killed(ctx: Context, mb: int) -> None:
    """Do to oneself what the kernel's memory killer does, once."""
    with noted(ctx):
        held = touch(mb)
        if ctx.job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        del held


@app.job(timeout=0.5, max_attempts=1)
def endless(ctx: Context) -> None:
    with noted(ctx):
        time.sleep(60)
