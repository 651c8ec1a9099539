"""Numbers as people write them: durations, sizes, counts, switches and instants, read into SI units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from queuety.errors import UsageError

CENTURY_S = 100 * 365.25 * 86_400
LARGEST_WHOLE = 2**63 - 1

SECONDS_ACCEPTED = "give seconds, or a number with ms, s, m, h or d: 30, 500ms, 5m, 1h30m"
SIZE_ACCEPTED = "give a number with B, kB, MB, GB or TB: 128MB, 1GB (1 kB is 1024 bytes)"
WHOLE_ACCEPTED = "give a whole number: 3"
SWITCH_ACCEPTED = "give on or off"
INSTANT_ACCEPTED = "give a date and time with an offset: 2030-01-31T09:00:00+09:00 or 2030-01-31T00:00:00Z"

_NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_DURATION = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{1,40})?\s*(?:ms|s|m|h|d)\s*){1,8}")
_DURATION_PART = re.compile(r"([0-9.]+)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*(?:([kmgt]?)(i?)(b?))", re.IGNORECASE)

_SECONDS_PER = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES_PER = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SWITCHES = {"on": True, "true": True, "yes": True, "1": True}
_SWITCHES |= {"off": False, "false": False, "no": False, "0": False}


def seconds(
    value: object, *, unit: float = 1, minimum: float = 0.0, maximum: float = CENTURY_S, what: str = ""
) -> float:
    """Read a duration: `30`, `30s`, `500ms`, `5m`, `1h30m`, a number, or a timedelta.

    unit: seconds that a bare number counts.  what: the option's name, for the message.
    Returns seconds within minimum..maximum; anything else, NaN and infinity too, is a UsageError.
    """
    number: float | None = None
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        finite = _finite(value)
        number = None if finite is None else finite * unit
    elif isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            number = float(text) * unit
        elif _DURATION.fullmatch(text):
            number = sum(_part(*part) for part in _DURATION_PART.findall(text))
    if number is None:
        raise UsageError(f"{_named(what, value)} is not a duration", SECONDS_ACCEPTED)
    return _within(number, minimum, maximum, seconds_text, _named(what, value))


def size(value: object, *, unit: int = 1, minimum: int = 0, maximum: int = 2**50, what: str = "") -> int:
    """Read a size in bytes: `128MB`, `1GB`, `64k`; a bare number counts `unit` bytes each.

    Returns bytes within minimum..maximum; anything else is a UsageError.
    """
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        finite = _finite(value)
        number = None if finite is None else finite * unit
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        amount, prefix, binary, byte = match.groups()
        if prefix or byte:
            number = None if binary and not prefix else float(amount) * _BYTES_PER[prefix.lower()]
        elif not binary:
            number = float(amount) * unit
    if number is None:
        raise UsageError(f"{_named(what, value)} is not a size", SIZE_ACCEPTED)
    return int(_within(number, minimum, maximum, size_text, _named(what, value)))


def whole(value: object, *, minimum: int = 0, maximum: int = LARGEST_WHOLE, what: str = "") -> int:
    """Read a whole number within minimum..maximum; `1.5`, `two` and `True` are UsageErrors."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        number = int(value)
    if number is None:
        raise UsageError(f"{_named(what, value)} is not a whole number", WHOLE_ACCEPTED)
    if not minimum <= number <= maximum:
        raise UsageError(
            f"{_named(what, value)} is out of range", f"give a whole number from {minimum} to {maximum}"
        )
    return number


def switch(value: object, *, what: str = "") -> bool:
    """Read `on` or `off` (also true/false, yes/no, 1/0)."""
    if isinstance(value, bool):
        return value
    found = _SWITCHES.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise UsageError(f"{_named(what, value)} is neither on nor off", SWITCH_ACCEPTED)
    return found


def instant(value: object, *, what: str = "") -> datetime:
    """Read a moment with an offset, as RFC 3339 text or as an aware datetime; returns it in UTC.

    A naive one is refused: nobody can know which zone it means.
    """
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        raise UsageError(f"{_named(what, value)} is not a date and time", INSTANT_ACCEPTED)
    if moment.utcoffset() is None:
        raise UsageError(f"{_named(what, value)} has no offset from UTC", INSTANT_ACCEPTED)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise UsageError(
            f"{_named(what, value)} is not within the years 1 to 9999 in UTC", INSTANT_ACCEPTED
        ) from None


def seconds_text(value: float) -> str:
    """Write seconds so that `seconds()` reads the same: 90.0 → `90s`, 300.0 → `5m`, 0.25 → `250ms`."""
    if value and value < 1 and (value * 1000).is_integer():
        return f"{int(value * 1000)}ms"
    for unit in ("d", "h", "m"):
        if value and value % _SECONDS_PER[unit] == 0:
            return f"{int(value // _SECONDS_PER[unit])}{unit}"
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"


def size_text(value: float) -> str:
    """Write bytes so that `size()` reads the same: 134217728 → `128MB`."""
    number = int(value)
    for prefix in ("t", "g", "m", "k"):
        if number and number % _BYTES_PER[prefix] == 0:
            return f"{number // _BYTES_PER[prefix]}{'k' if prefix == 'k' else prefix.upper()}B"
    return f"{number}B"


def shown(value: object) -> str:
    """Write a refused value for an error message: one short printable line, whatever it is."""
    if isinstance(value, str):
        value = value[:100]
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # noqa: BLE001 - a repr is somebody else's code
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _part(amount: str, unit: str) -> float:
    try:
        return float(amount) * _SECONDS_PER[unit]
    except ValueError:
        return math.inf


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _within(number: float, low: float, high: float, write: Callable[[float], str], named: str) -> float:
    if not low <= number <= high:
        raise UsageError(f"{named} is out of range", f"give {write(low)} to {write(high)}")
    return number


def _named(what: str, value: object) -> str:
    return f"{what}={shown(value)}" if what else shown(value)
