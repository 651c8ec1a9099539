"""Payloads as they come in: on the command line, in a file, on standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

from queuety.errors import PayloadError, UsageError
from queuety.units import shown

MOST = 256 * 1024 * 1024  # bytes; the largest payload that a setting may allow


def text(payload: str | None) -> str:
    """The payload's text: as given, of `@file`, or of standard input for `-`."""
    if payload is None:
        return "{}"
    if payload == "-":
        return _whole(opened("-"), "standard input")
    if payload.startswith("@"):
        with opened(payload[1:]) as file:
            return _whole(file, payload[1:])
    return payload


def read(given: str, limit_bytes: int, what: str = "payload") -> dict[str, Any]:
    """Read a JSON object, or raise PayloadError."""
    from queuety import strict

    return strict.read(given, limit_bytes=limit_bytes, what=what)


def opened(name: str) -> IO[bytes]:
    """Open a file to read; `-` is standard input."""
    if name == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed", "give the payload itself, or @file")
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown(name)}: {getattr(error, 'strerror', None) or error}") from None


def decoded(raw: bytes, name: str) -> str:
    """UTF-8 bytes as text, or PayloadError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"{name} is not UTF-8: byte {error.start}", "write it in UTF-8") from None


def _whole(file: IO[bytes], name: str) -> str:
    raw = file.read(MOST + 1)
    if len(raw) > MOST:
        raise PayloadError(f"{name} holds more than 256 MB", "store the data elsewhere and pass its place")
    return decoded(raw, name).removeprefix("\ufeff")
