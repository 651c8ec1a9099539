"""Strict JSON: a value arrives equal to what was given, or is refused where it was given."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NoReturn

from queuety.errors import PayloadError

MAX_DEPTH = 200
MAX_DIGITS = 4300  # Python reads no longer number by default

_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list, OrderedDict})
_KNOWN = _SCALARS | _CONTAINERS
_KEYS = frozenset({str})

# Circles are found before, by their depth.
_ENCODE = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode


def dumps(value: object, *, limit_bytes: int, what: str = "payload") -> str:
    """Write a value as compact JSON text, or raise PayloadError naming the place that JSON cannot carry.

    limit_bytes: most UTF-8 bytes of the text.
    what:        payload or result, for the message.
    Accepts exactly str, int, float, bool, None, list, dict with str keys and OrderedDict: anything else, a
    subclass too, would come back as something else. Refuses NaN, infinity, NUL, lone surrogates, integers of
    more than 4,300 digits, circles, and more than 200 levels.
    """
    if not _is_plain(value, limit_bytes):
        _refuse(value, limit_bytes, what)
    try:
        text = _ENCODE(value)
        length = len(text) if text.isascii() else len(text.encode())
    except ValueError:  # NaN, infinity, too many digits, or a lone surrogate
        _refuse(value, limit_bytes, what)
    if length > limit_bytes:
        raise _too_large(f"{length:,}", limit_bytes, what)
    # Not yet proof: the text "\\u0000" without a NUL in it is as good as any other.
    if "\\u0000" in text or (length > MAX_DIGITS and _holds_long_number(text)):
        fault = _fault(value, limit_bytes, what)
        if fault is not None:
            raise fault
    return text


def loads(text: str) -> Any:
    """Read JSON text that is stored; NaN, infinity and whatever Python cannot read are a PayloadError."""
    return _decoded(_DECODER, text, "the stored JSON")


def read(text: str, *, limit_bytes: int, what: str = "payload") -> dict[str, Any]:
    """Read a JSON object that a person or another program wrote; a key given twice is a PayloadError."""
    if len(text) > limit_bytes:
        raise _too_large(f"{len(text):,}", limit_bytes, what)
    value = _decoded(_STRICT_DECODER, text, f"the {what}")
    if not isinstance(value, dict):
        raise PayloadError(f"the {what} is {_article(type(value))}, not an object", 'give {"name": value, …}')
    return value


def _is_plain(value: object, limit_bytes: int) -> bool:
    """Whether JSON keeps every type in the value, level by level at the speed of C.

    Bounded by the levels and by the limit (each element takes two bytes or more), so that circles and
    containers that share each other a billion times end soon.
    """
    if type(value) not in _CONTAINERS:
        return type(value) in _SCALARS and not (type(value) is str and len(value) > limit_bytes)
    level: list[Any] = [value]
    budget = limit_bytes
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            budget -= len(container)
            if budget < 0:
                return False
            if type(container) is list:
                items = container
            elif _KEYS.issuperset(map(type, container)):
                items = container.values()
            else:
                return False
            kinds = set(map(type, items))
            if not kinds <= _SCALARS:
                if not kinds <= _KNOWN:
                    return False
                below += [item for item in items if type(item) in _CONTAINERS]
        if not below:
            return True
        level = below
    return False


def _holds_long_number(text: str) -> bool:
    """Whether more than MAX_DIGITS digits follow each other; looks at one character of so many."""
    digits = "0123456789"
    for place in range(MAX_DIGITS, len(text), MAX_DIGITS + 1):
        if text[place] in digits:
            before = text[place - MAX_DIGITS : place]
            after = text[place : place + MAX_DIGITS + 1]
            if len(before) - len(before.rstrip(digits)) + len(after) - len(after.lstrip(digits)) > MAX_DIGITS:
                return True
    return False


def _refuse(value: object, limit_bytes: int, what: str) -> NoReturn:
    fault = _fault(value, limit_bytes, what)
    if fault is None and type(value) is str and len(value) > limit_bytes:
        fault = _too_large(f"{len(value):,}", limit_bytes, what)
    raise fault or PayloadError(f"{what} cannot be written as JSON", _hint(what))


def _fault(value: object, limit_bytes: int, what: str) -> PayloadError | None:
    """The first thing in the value that JSON cannot carry, with its place; slow, so only under suspicion."""
    left = limit_bytes
    stack: list[tuple[object, str, int]] = [(value, what, 1)]
    while stack:
        item, place, depth = stack.pop()
        left -= 1
        if left < 0:
            return _too_large(f"more than {limit_bytes:,}", limit_bytes, what)
        if type(item) in _SCALARS:
            fault = _scalar_fault(item, place)
        elif type(item) not in _CONTAINERS:
            fault = _type_fault(item, place, what)
        elif depth > MAX_DEPTH:
            return PayloadError(
                f"{what} is nested more than {MAX_DEPTH} levels deep, or contains itself", "make it flatter"
            )
        else:
            fault, children = _children(item, place)
            stack += [(child, where, depth + 1) for child, where in reversed(children)]
        if fault is not None:
            return fault
    return None


def _children(container: Any, place: str) -> tuple[PayloadError | None, list[tuple[object, str]]]:
    if type(container) is list:
        return None, [(item, f"{place}[{n}]") for n, item in enumerate(container)]
    children = []
    for key, item in container.items():
        if type(key) is not str:
            message = f"{place} has a key that is {_article(type(key))}; JSON has only texts as keys"
            return PayloadError(message, "use str keys"), []
        fault = _scalar_fault(key, f"a key of {place}")
        if fault is not None:
            return fault, []
        children.append((item, _below(place, key)))
    return None, children


def _below(place: str, key: str) -> str:
    if len(place) > 400:  # deep inside: the way in tells enough
        return place if place.endswith("…") else f"{place}…"
    return f"{place}.{key}" if key.isidentifier() and len(key) <= 80 else f"{place}[{key[:80]!a}]"


def _scalar_fault(item: object, place: str) -> PayloadError | None:
    if isinstance(item, float) and not math.isfinite(item):
        return PayloadError(f"{place} is {item}, which JSON does not have", "use None, or a text")
    if isinstance(item, str):
        if "\0" in item:
            where = item.index("\0")
            return PayloadError(
                f"{place} contains a NUL character at position {where + 1}, which PostgreSQL cannot store",
                "remove it; binary data goes as base64",
            )
        try:
            item.encode()
        except UnicodeEncodeError as error:
            return PayloadError(
                f"{place} contains half a character (lone surrogate) at position {error.start + 1}",
                "decode the text with the right encoding; binary data goes as base64",
            )
    if isinstance(item, int) and not _writable(item):
        return PayloadError(
            f"{place} is an integer of more than {MAX_DIGITS:,} digits", "send it as a hexadecimal text"
        )
    return None


def _writable(number: int) -> bool:
    try:
        return number.bit_length() < 3 * MAX_DIGITS or len(repr(abs(number))) <= MAX_DIGITS
    except ValueError:  # more digits than this process is allowed to write
        return False


def _type_fault(item: object, place: str, what: str) -> PayloadError:
    kind = type(item)
    hint = _hint(what)
    if isinstance(item, enum.Enum):
        hint = f"use its .value{_or_annotate(what)}"
    elif isinstance(item, tuple):
        hint = f"use a list{_or_annotate(what)}"
    elif isinstance(item, (set, frozenset)):
        hint = "use a sorted list"
    elif isinstance(item, (bytes, bytearray, memoryview)):
        hint = "use base64 text"
    elif dataclasses.is_dataclass(item):
        hint = f"use dataclasses.asdict(){_or_annotate(what)}"
    for base in (str, int, float, dict, list):
        if isinstance(item, base) and not isinstance(item, enum.Enum):
            message = f"{place} is {_article(kind)}, which would come back as a plain {base.__name__}"
            return PayloadError(message, f"use {base.__name__}(…)")
    return PayloadError(f"{place} is {_article(kind)}, which JSON cannot carry", hint)


def _or_annotate(what: str) -> str:
    return ", or annotate the handler's parameter with the type" if what == "payload" else ""


def _hint(what: str) -> str:
    hint = "use texts, numbers, True, False, None, lists and dicts"
    if what == "payload":
        hint += ", or annotate the handler's parameter (datetime, date, Decimal, UUID, Enum, dataclass)"
    return hint


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[:1] in 'aeioAEIO' else 'a'} {kind.__name__}"


def _too_large(length: str, limit_bytes: int, what: str) -> PayloadError:
    return PayloadError(
        f"{what} has {length} bytes as JSON; {limit_bytes:,} are allowed",
        f"keep the data elsewhere and pass where it is, or raise {what}_limit",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!a} is given twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_STRICT_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique_keys)


def _decoded(decoder: json.JSONDecoder, text: str, what: str) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise PayloadError(f"{what} is nested too deep to be read", "make it flatter") from None
    except ValueError as error:
        raise PayloadError(f"{what} cannot be read: {error}", "check it with a JSON tool") from None
