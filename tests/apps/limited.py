"""Handlers with limits; each notes in the ledger when it runs."""

from __future__ import annotations

import os
import time
from typing import Any

from queuety import Context, Queuety
from tests.apps.basic import noted

app = Queuety()


@app.job(concurrency_group="three", concurrency_limit=3, max_attempts=50, backoff=[0.1])
def work(ctx: Context, seconds: float = 0.0) -> None:
    with noted(ctx):
        time.sleep(seconds)


@app.job(concurrency_limit=2, max_attempts=2, backoff=[0.1])
def ends(ctx: Context, how: str) -> Any:
    """End in the way that is asked for."""
    with noted(ctx):
        time.sleep(0.05)
        if how == "raise":
            raise ValueError("as asked")
        if how == "die":
            os._exit(3)
        if how == "sleep":
            time.sleep(20)


@app.job(rate_limit=(2, 1.0), max_attempts=2)
def twice(ctx: Context) -> None:
    with noted(ctx):
        pass


@app.job(rate_limit=(100, 1.0), queue="rated")
def hundred(ctx: Context) -> None:
    with noted(ctx):
        pass


@app.job(queue="costly")
def costs(ctx: Context, seconds: float = 0.0) -> None:
    with noted(ctx):
        time.sleep(seconds)


@app.job
def free(ctx: Context) -> None:
    with noted(ctx):
        pass
