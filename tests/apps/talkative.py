"""Handlers that log."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import os
import sys
import threading
import warnings

from queuety import Queuety

if os.environ.get("QUEUETY_TEST_DICT_CONFIG"):
    logging.config.dictConfig({"version": 1})

app = Queuety()
log = logging.getLogger("shop.mail")


@app.job
def talk() -> None:
    log.warning("from the handler")


@app.job
def talk_in_a_thread() -> None:
    thread = threading.Thread(target=lambda: log.warning("from its thread"))
    thread.start()
    thread.join()


@app.job
async def talk_later() -> None:
    await asyncio.sleep(0.01)
    log.warning("from a coroutine")


@app.job
def stumble() -> None:
    try:
        raise ValueError("on purpose")
    except ValueError:
        log.exception("with a traceback")
    raise RuntimeError("and again")


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@app.job
def mutter() -> None:
    """Say all that a log line cannot simply hold, then that it is done."""
    log.error("bad %s %s", 1)
    log.error("mute %s", Mute())
    log.error("half a sign: \ud800")
    log.error(
        "with fields",
        stack_info=True,
        extra={
            "order": 7,
            "job": "not ours",
            "cart": {"sum": 1.5, "signs": "\ud800"},
            "mute": Mute(),
            "nan": float("nan"),
            "long": "x" * 100_000,
            "db_password": "secret",
        },
    )
    log.error("done")


@app.job
def mutter_aside() -> None:
    """Say things on standard error by other ways than logging, then that it is done."""
    warnings.warn("an old way", stacklevel=1)
    thread = threading.Thread(target=lambda: [][0], name="aside")
    thread.start()
    thread.join()
    print("no end of line", end="", file=sys.stderr)
    log.error("done")
