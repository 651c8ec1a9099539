"""A handler that swallows its time limit."""

from __future__ import annotations

import time

from queuety import Context, Queuety
from tests.apps.basic import note

app = Queuety()


@app.job(timeout=1)
def swallow(ctx: Context, seconds: float) -> None:
    note(ctx, "start")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(1)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue
