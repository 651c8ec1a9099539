"""The one validator of names: what it lets through works in every command, URL and notification."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from queuety import units
from queuety.errors import UsageError

MAX_NAME = 255
MAX_WEIGHT = 1000
QUEUE_SIGNS = "_-."
OTHER_SIGNS = QUEUE_SIGNS + ":/@+#"

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # the usual name, fit for every kind

# Letters and marks that show nothing: two names that look alike must be alike.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def check_name(kind: str, value: object, *, allow: str = "") -> str:
    """Return the name as it is stored: NFC, trimmed, 1 to 255 characters.

    kind:  queue, handler, group, key or tag; it stands in the message.
    allow: further signs to accept.
    Letters, digits and marks of every script, `_ - .`, and but for queues `: / @ + #`; not `-` or `.` in
    front, which commands and paths would misread. Everything else is a UsageError naming the first bad
    character.
    """
    if type(value) is str and _PLAIN.fullmatch(value):
        return value
    signs = (QUEUE_SIGNS if kind == "queue" else OTHER_SIGNS) + allow
    name = _text(kind, value)
    for place, sign in enumerate(name, 1):
        first = place == 1 and sign in "-." and sign not in allow
        if first or not (sign in signs or _is_letter(sign)):
            raise UsageError(
                f"the {kind} name {quoted(name)} cannot be used: "
                f"{quoted(sign)} (U+{ord(sign):04X}) at position {place}",
                f"use letters, digits and {' '.join(signs)}, with no - or . in front",
            )
    return name


def check_queue(value: object) -> str:
    """Return a queue's name as it is stored, or raise UsageError."""
    return check_name("queue", value)


def check_unique_key(value: object) -> str:
    """Return a unique key as it is stored: any printable text, NFC, trimmed, 1 to 255 characters."""
    key = _text("unique key", value)
    for place, sign in enumerate(key, 1):
        if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp"):
            raise UsageError(
                f"the unique key {quoted(key)} cannot be used: "
                f"{quoted(sign)} (U+{ord(sign):04X}) at position {place}",
                "use printable characters, or a digest of the key in hexadecimal",
            )
    return key


def queue_list(value: object) -> tuple[str, ...]:
    """Read `"critical, default ,low"` or a sequence of names, in order.

    A queue named twice counts at its first place. An empty list or an empty name is a UsageError.
    """
    parts = _parts(value)
    for part in parts:
        if isinstance(part, str) and ":" in part:
            raise UsageError(
                f"{quoted(part)} is not a queue's name", "give names only: weights are for `work` and `flush`"
            )
    return tuple(dict.fromkeys(check_queue(part) for part in parts))


def weighted_queues(value: object) -> dict[str, int]:
    """Read a queue list that may hold weights, `"critical,default:3,low:1"` or a sequence of the same texts.

    Returns the weight of each queue, in order; 0: none. Strict queues come before the weighted ones: what stands
    behind them would have no place in the order, and is a UsageError, as are two weights for one queue.
    """
    weights: dict[str, int] = {}
    for part in _parts(value):
        name, weight = _weighted(part)
        if weights.setdefault(name, weight) != weight:
            raise UsageError(f"queue {quoted(name)} is named twice, with different weights", "name it once")
    shared = False
    for name, weight in weights.items():
        if shared and not weight:
            raise UsageError(
                f"queue {quoted(name)} has no weight, but stands behind queues that have one",
                f"give it one, as in {name}:1, or put it in front: without a weight it is strict",
            )
        shared = shared or weight > 0
    return weights


def _weighted(part: object) -> tuple[str, int]:
    if not isinstance(part, str) or ":" not in part:
        return check_queue(part), 0
    name, _, weight = part.rpartition(":")
    name = check_queue(name)
    return name, units.whole(
        weight, minimum=1, maximum=MAX_WEIGHT, what=f"the weight of queue {quoted(name)}"
    )


def _parts(value: object) -> list[object]:
    if isinstance(value, str):
        parts: list[object] = list(value.split(","))
    elif isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, dict)):
        parts = list(value)
    else:
        raise UsageError(f"queues must be names, not {type(value).__name__}", "give a,b or a list of names")
    if not parts:
        raise UsageError("the list of queues is empty", "name at least one queue")
    return parts


def quoted(text: str) -> str:
    """Quote a text for a message; what cannot be printed is escaped, what is long is cut."""
    line = repr(text) if text.isprintable() else ascii(text)
    return line if len(line) <= 80 else f"{line[:79]}…"


def _text(kind: str, value: object) -> str:
    """Normalise and trim; refuse what is no text, empty or too long."""
    if not isinstance(value, str):
        raise UsageError(f"the {kind} name must be a text, not {type(value).__name__}", "give a str")
    # Measured before normalising, which takes long for megabytes and at most thirds the length.
    length = str.__len__(value)
    name = "" if length > 10 * MAX_NAME else unicodedata.normalize("NFC", str.__str__(value)).strip()
    if length > 10 * MAX_NAME or len(name) > MAX_NAME:
        raise UsageError(
            f"the {kind} name has {len(name) or length} characters, at most {MAX_NAME} are possible",
            "shorten it",
        )
    if not name:
        raise UsageError(f"the {kind} name is empty", "give a name")
    return name


def _is_letter(sign: str) -> bool:
    category = unicodedata.category(sign)
    return (category[0] in "LM" or category == "Nd") and not _INVISIBLE.match(sign)
