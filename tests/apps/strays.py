"""A handler that leaves a process behind, whose parent then is process 1."""

from __future__ import annotations

import subprocess

from queuety import Context, Queuety
from tests.apps.basic import noted

app = Queuety()


@app.job
def stray(ctx: Context) -> None:
    with noted(ctx):
        subprocess.run(["sh", "-c", "setsid sleep 0.1 & "], check=True)
