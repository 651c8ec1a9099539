"""An application that, at import, starts a thread which logs without a pause, and may choose a start method."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from typing import Any

from queuety import Context, Queuety
from tests.apps import basic
from tests.apps.basic import noted

app = Queuety()
app.job(basic.ok.function)
_log = logging.getLogger("application")
_logging = logging.getLogger("application.quiet")
_logging.propagate = False
_logging.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115


def _talk() -> None:
    while True:
        _logging.warning("still here")
        time.sleep(0.0001)


if _method := os.environ.get("QUEUETY_TEST_START_METHOD"):
    multiprocessing.set_start_method(_method, force=True)
else:
    threading.Thread(target=_talk, daemon=True).start()


def _square(number: int) -> int:
    return number * number


@app.job
def in_pool(ctx: Context) -> list[Any]:
    """Use a process pool of the application's own start method."""
    with noted(ctx), multiprocessing.Pool(2) as pool:
        return [multiprocessing.get_start_method(), *pool.map(_square, range(3))]
