"""Standard output and error that cannot harm a job: a reader that has gone away, a full disk, a narrow encoding."""

from __future__ import annotations

import fcntl
import io
import os
import sys


class _Patient(io.FileIO):
    """A descriptor whose failing writes are dropped."""

    def write(self, data: object) -> int:
        try:
            written = super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(memoryview(data))  # type: ignore[arg-type]
        return len(memoryview(data)) if written is None else written  # type: ignore[arg-type]


class _Buffer(io.BufferedWriter):
    """Stays open: whoever closes it would close it for all handlers that come after."""

    def close(self) -> None:
        self.flush()


class _Text(io.TextIOWrapper):
    """Stays open, likewise; knows whether what was written last is within a line."""

    within_line = False

    def write(self, text: str) -> int:
        written = super().write(text)
        if text:
            self.within_line = not text.endswith("\n")
        return written

    def close(self) -> None:
        self.flush()


class Standard:
    """The standard files of a worker as they are before a handler runs, to be put back after it."""

    def __init__(self) -> None:
        self._streams = sys.stdout, sys.stderr
        self._kept = {number: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (0, 1, 2)}

    def put_back(self) -> None:
        """Undo what a handler has closed or replaced."""
        for number, kept in self._kept.items():
            try:
                os.get_inheritable(number)  # the cheapest question to a descriptor
            except OSError:
                # The next connection or file opened would take its number, and be printed to.
                os.dup2(kept, number)
        out, err = self._streams
        if sys.stdout is not out or sys.stderr is not err:
            sys.stdout, sys.stderr = out, err


def protect() -> None:
    """Replace sys.stdout and sys.stderr of this process; what the encoding lacks is escaped."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        encoding = getattr(old, "encoding", None) or "utf-8"
        try:
            raw = _Buffer(_Patient(number, "w", closefd=False), buffer_size=8192)
        except OSError:  # closed from the start
            continue
        text = _Text(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)
        setattr(sys, name, text)
