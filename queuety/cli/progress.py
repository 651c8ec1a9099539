"""How far long work is, on standard error: in place on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from queuety.cli.output import line, talk

_IN_PLACE_S, _LINE_S = 0.2, 10.0


class Progress:
    """Says nothing about work that is done before the first line is due."""

    def __init__(self) -> None:
        self._in_place = sys.stderr is not None and sys.stderr.isatty()
        self._every = _IN_PLACE_S if self._in_place else _LINE_S
        self._next = time.monotonic() + max(self._every, 1.0)
        self._shown = False

    def show(self, text: Callable[[], str]) -> None:
        """Show the text if it is time to; cheap to call often."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        if self._in_place:
            self._shown = True
            self._write(f"\r\x1b[K{line(text())}")
        else:
            talk(text())

    def clear(self) -> None:
        """Take the line in place away again."""
        if self._shown:
            self._shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return
