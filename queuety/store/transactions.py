"""Transactions that are tried again when the database asks for it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from queuety.store import connect
from queuety.store.connect import Connection

T = TypeVar("T")

TRIES = 8
FIRST_PAUSE_S = 0.01


def repeated(conn: Connection, work: Callable[[], T]) -> T:
    """Run `work` in a transaction; after a deadlock or serialization failure do it again, up to TRIES times.

    Within a transaction of the caller's it runs once: only the caller could do all of it again.
    """
    inner = not connect.idle(conn)
    for attempt in range(1, TRIES):
        try:
            with conn.transaction():
                return work()
        except psycopg.OperationalError as error:
            if inner or not connect.again(error):
                raise
        pause(attempt)
    with conn.transaction():
        return work()


def pause(attempt: int) -> None:
    """Wait before the next attempt; at random, or two that met would meet again."""
    time.sleep(random.uniform(0, FIRST_PAUSE_S * 2**attempt))
