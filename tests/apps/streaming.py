"""Jobs that tell of their way."""

from __future__ import annotations

import time

from queuety import Context, Permanent, Queuety
from tests.apps.parts import part

app = Queuety()


@app.job
def tell(ctx: Context, count: int, pause: float = 0.0) -> int:
    """Tell so many parts, one every `pause` seconds."""
    for n in range(count):
        part(ctx, {"n": n})
        time.sleep(pause)
    return count


@app.job(max_attempts=1)
def wrong() -> None:
    raise Permanent("on purpose")
