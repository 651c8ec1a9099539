"""What a function finds in its worker's process, and must leave there as it was: the next call runs there too."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_THREADS_S = 0.05  # for threads that were told to end
_TRIES = 5
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)  # the first is also `alarm`
_SIGNALS = tuple(sorted(signal.valid_signals()))


@dataclass(frozen=True)
class Surroundings:
    """The process as it is now.

    threads: the numbers of those that run Python code, and how many there are in all, also such that `threading`
    does not know.
    """

    directory: str | None = field(default_factory=lambda: _directory())
    mask: set[int | signal.Signals] = field(
        default_factory=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ())
    )
    handlers: dict[signal.Signals, Any] = field(default_factory=lambda: _handlers())
    threads: tuple[set[int], int] = field(default_factory=lambda: _threads())

    def put_back(self) -> str | None:
        """Make it as it was; what cannot be put back, in one line.

        Timers, signal handlers, the signal mask and the working directory are put back, dead children are waited for.
        Threads and living children are not touched: only the end of the process ends them for certain.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(BaseException):  # a signal's handler that the function has left
                return self._put_back()
        return "a signal handler that raises"

    def _put_back(self) -> str | None:
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        if "faulthandler" in sys.modules:
            sys.modules["faulthandler"].cancel_dump_traceback_later()
        for number, handler in _handlers().items():
            if handler != self.handlers[number]:
                if self.handlers[number] is None:
                    return f"a handler of {number.name}"
                signal.signal(number, self.handlers[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        if self.directory is not None and _directory() != self.directory:
            try:
                os.chdir(self.directory)
            except OSError:
                return "another working directory"
        if _child_lives():
            return "a process that it has started"
        return "a thread that it has started" if self._thread_lives() else None

    def _thread_lives(self) -> bool:
        patience = time.monotonic() + _THREADS_S
        while time.monotonic() < patience:
            numbers, count = _threads()
            if numbers <= self.threads[0] and count <= self.threads[1]:
                return False
            time.sleep(0.001)
        return True


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _threads() -> tuple[set[int], int]:
    return set(sys._current_frames()), _thread._count()


def _child_lives() -> bool:
    """Whether a child of this process lives; those that have ended are waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
