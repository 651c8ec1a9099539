"""Handlers that log."""

from __future__ import annotations

import asyncio
import logging
import threading

from queuety import Queuety

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
