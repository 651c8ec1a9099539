"""The one timer of a worker: it rings at the earliest moment that anybody has asked for."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]


class Alarm:
    """SIGALRM, armed with two system calls a batch rather than two a job. Silent outside the main thread."""

    def __init__(self) -> None:
        self._armed = math.inf
        self._works = threading.current_thread() is threading.main_thread()
        self._before: tuple[Any, float, float] | None = None  # handler, its timer's moment and interval

    def install(self, handler: Handler) -> None:
        if self._works:
            left, interval = signal.getitimer(signal.ITIMER_REAL)
            before = signal.signal(signal.SIGALRM, handler)
            if self._before is None:
                self._before = before, time.monotonic() + left if left else math.inf, interval

    def uninstall(self) -> None:
        """Give the signal and its timer back to whoever had them: a lone worker is a guest in its process."""
        if self._before is None:
            return
        (handler, moment, interval), self._before = self._before, None
        self.off()
        if handler is not None:  # None: not made in Python
            signal.signal(signal.SIGALRM, handler)
        if moment < math.inf:
            signal.setitimer(signal.ITIMER_REAL, max(moment - time.monotonic(), 0.0001), interval)

    def at(self, moment: float) -> None:
        """Ring at `moment` (monotonic seconds), unless it is to ring earlier anyway."""
        if moment < self._armed and self._works:
            self._armed = moment
            signal.setitimer(signal.ITIMER_REAL, max(moment - time.monotonic(), 0.0001))

    def rang(self) -> None:
        """To be called first by the handler: nothing is armed any more."""
        self._armed = math.inf

    def off(self) -> None:
        if self._armed < math.inf:
            self._armed = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0)
