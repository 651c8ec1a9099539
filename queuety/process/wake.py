"""Sleep until a signal, a pipe or a moment, whichever comes first. Signal handlers do nothing but write here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from types import FrameType

_KNOWN = frozenset(member.value for member in signal.Signals)


def _noop(_signal: int, _frame: FrameType | None) -> None:
    """Exist, so that the signal reaches the wake-up pipe instead of ending the process."""


class Waker:
    """The self-pipe of one process. Make a new one after each fork."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self.signals = tuple(signals)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._identity = self._look()
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self.install()

    def install(self) -> None:
        """(Re)install the handlers: a user's handler may have replaced them."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self.signals:
            signal.signal(number, _noop)

    def watch(self, fd: int, *, writing: bool = False) -> None:
        """Wake when there is something to read, or instead when there is room to write."""
        self._poll.register(fd, select.POLLOUT if writing else select.POLLIN)

    def unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError, OSError):
            self._poll.unregister(fd)

    def wait(self, seconds: float) -> tuple[list[signal.Signals], list[int]]:
        """Sleep up to `seconds`; return the signals that came and the watched descriptors that are ready."""
        events = self._poll.poll(max(0.0, seconds) * 1000)
        for fd, event in events:
            if event & select.POLLNVAL:  # closed by somebody: it would be ready for ever
                self.unwatch(fd)
        ready = [fd for fd, event in events if fd != self._read and not event & select.POLLNVAL]
        return self.drain(), ready

    def drain(self) -> list[signal.Signals]:
        """Return the signals that have come so far, without waiting."""
        try:
            numbers = os.read(self._read, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in _KNOWN]

    @property
    def intact(self) -> bool:
        """False once somebody has closed our pipe; its numbers may be anything by now."""
        return self._look() == self._identity

    def _look(self) -> list[int]:
        try:
            return [os.fstat(fd).st_ino for fd in (self._read, self._write)]
        except OSError:
            return []

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        if self.intact:
            os.close(self._read)
            os.close(self._write)
