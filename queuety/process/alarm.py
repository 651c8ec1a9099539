"""The one timer of a worker: it rings at the earliest moment that anybody has asked for."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


class Alarm:
    """SIGALRM, armed with two system calls a batch rather than two a job. Silent outside the main thread."""

    def __init__(self) -> None:
        self._armed = math.inf
        self._works = threading.current_thread() is threading.main_thread()

    def install(self, handler: Handler) -> None:
        if self._works:
            signal.signal(signal.SIGALRM, handler)

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
