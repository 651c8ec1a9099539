"""What keeps a CPU pool from starting workers at present: no files, processes or memory are left. It may pass."""

from __future__ import annotations

import time

_FIRST_S, _LONGEST_S = 0.1, 5.0


class Trouble:
    """The last error, since when it is so, and when to try again: pauses double from 0.1 s to 5 s."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.since = self.again_at = 0.0
        self._pause_s = _FIRST_S

    def failed(self, error: BaseException) -> None:
        now = time.monotonic()
        if self.error is None:
            self.since, self._pause_s = now, _FIRST_S
        self.error, self.again_at = error, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)

    def over(self) -> None:
        self.error, self.again_at = None, 0.0
