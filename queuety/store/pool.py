"""Connections for callers: shared by threads, bounded, never carried over a fork."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from queuety.errors import DatabaseUnreachable
from queuety.store import connect
from queuety.store.connect import Connection

MOST = 10  # connections of one process
WAIT_S = 30.0


class Pool:
    """Up to MOST autocommit connections to one database, opened when needed, reused last in, first out."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Connection] = []
        self._room = threading.Semaphore(MOST)

    @contextmanager
    def connection(self, *, lent: bool = False) -> Iterator[Connection]:
        """Lend a connection. Errors of psycopg leave as errors of our own tree where one fits.

        lent: to a user: what becomes of its session is not known here, so that it is closed afterwards, and errors
        may be about tables of his.
        """
        if self._pid != os.getpid():
            self._reset()  # the parent's sockets are dropped unclosed: closing them would end its sessions
        if not self._room.acquire(timeout=WAIT_S):
            raise DatabaseUnreachable(
                f"all {MOST} connections of this process have been in use for {WAIT_S:g} s",
                "use fewer threads, or hand in a connection of your own with connection=",
            )
        try:
            conn = self._take()
            try:
                yield conn
            except psycopg.Error as error:
                translated = connect.translate(error, own=not lent)
                if translated is error:
                    raise
                raise translated from error
            finally:
                conn.close() if lent else self._put_back(conn)
        finally:
            self._room.release()

    def _take(self) -> Connection:
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                conn = self._idle.pop()
                if _usable(conn):
                    return conn
                conn.close()
        return connect.connect(self.url, name="queuety caller")

    def _put_back(self, conn: Connection) -> None:
        if conn.closed or conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            conn.close()
        else:
            self._idle.append(conn)

    def close(self) -> None:
        while self._idle:
            with suppress(IndexError, psycopg.Error):
                self._idle.pop().close()


def _usable(conn: Connection) -> bool:
    """False if the server has hung up meanwhile: an idle connection has nothing to say.

    Costs no round trip, and spares the question whether a failed INSERT has been done.
    """
    if conn.closed:
        return False
    if not hasattr(select, "poll"):  # Windows, where only callers work
        return not select.select([conn.fileno()], [], [], 0)[0]
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)
