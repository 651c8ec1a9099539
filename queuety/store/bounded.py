"""A connection that waits for no answer longer than it is told."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow
from psycopg.waiting import Ready

T = TypeVar("T")

PATIENCE_S = 15.0  # for the pools' own statements, which are short


class Bounded(psycopg.Connection[TupleRow]):
    """Raises psycopg.OperationalError, and is closed, once a statement is not answered for `patience_s`.

    TCP's own time-outs notice a dead peer, but not a live one that forwards nothing any more, such as a proxy.
    """

    patience_s = math.inf

    def wait(self, gen: PQGen[T], *given: Any, **more: Any) -> T:
        return super().wait(self._watched(gen), *given, **more)

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Wait longer for the answers of this block."""
        before, self.patience_s = self.patience_s, seconds
        try:
            yield
        finally:
            self.patience_s = before

    def _watched(self, gen: PQGen[T]) -> PQGen[T]:
        until = time.monotonic() + self.patience_s
        try:
            state = next(gen)
            while True:
                ready = yield state
                # NONE comes ten times a second while there is nothing to read.
                if ready == Ready.NONE and time.monotonic() > until:
                    self._give_up()
                state = gen.send(ready)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _give_up(self) -> NoReturn:
        # A server that is only slow must not pile up what we no longer wait for.
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=2.0)
        self.pgconn.finish()  # or the end of the transaction would wait as long again
        raise psycopg.OperationalError(f"no answer for {self.patience_s:g} s")
