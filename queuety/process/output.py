"""Standard output and error that cannot harm a job: a reader that has gone away, a full disk, a narrow encoding."""

from __future__ import annotations

import io
import sys


class _Patient(io.FileIO):
    """A descriptor whose failing writes are dropped."""

    def write(self, data: object) -> int:
        try:
            written = super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(memoryview(data))  # type: ignore[arg-type]
        return len(memoryview(data)) if written is None else written  # type: ignore[arg-type]


def protect() -> None:
    """Replace sys.stdout and sys.stderr of this process; what the encoding lacks is escaped."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        encoding = getattr(old, "encoding", None) or "utf-8"
        try:
            raw = io.BufferedWriter(_Patient(number, "w", closefd=False), buffer_size=8192)
        except OSError:  # closed from the start
            continue
        setattr(
            sys,
            name,
            io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True),
        )
