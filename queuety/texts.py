"""Texts that strangers wrote, such as errors, made fit to be stored: clean, short, without passwords."""

from __future__ import annotations

import re
import traceback
from collections import deque
from types import FrameType, TracebackType

from queuety.model import ErrorInfo
from queuety.redaction import redact_text

MAX_MESSAGE = 4000
MAX_TRACEBACK = 16_000
MAX_TYPE = 255

# Looked at beyond the cut, so that a password that the cut would halve is still seen whole.
_MARGIN = 1000
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# Of a chain of causes: the errors nearest to the one raised, and the first of all, if it is within reach.
_NEAR, _FIRST, _REACH = 6, 2, 10_000
_FRAMES_HEAD, _FRAMES_TAIL = 10, 40


def storable(text: str) -> str:
    """The text in full, as PostgreSQL and JSON can hold it, without passwords."""
    return redact_text(_UNSTORABLE.sub("\ufffd", text))


def clean(text: str, limit: int) -> str:
    """The text as PostgreSQL can store it, in at most `limit` characters, the last telling what is missing.

    NUL and lone surrogates become U+FFFD; passwords of connection strings become ***. Costs the same for
    a megabyte as for the limit.
    """
    length = str.__len__(text)
    head = storable(str.__getitem__(text, slice(0, limit + _MARGIN)))
    if length <= limit + _MARGIN and len(head) <= limit:
        return head
    mark = f"… [{length:,} characters]"
    return head[: max(limit - len(mark), 0)] + mark[:limit]


def middle_cut(text: str, limit: int) -> str:
    """As `clean`, but what does not fit is taken out of the middle: a quarter is kept of the head."""
    length = str.__len__(text)
    if length <= limit:
        return clean(text, limit)
    mark = f"\n… [{length:,} characters, the middle left out] …\n"
    room = max(limit - len(mark), 0)
    head = storable(str.__getitem__(text, slice(0, room // 4 + _MARGIN)))[: room // 4]
    tail = storable(str.__getitem__(text, slice(-(room - room // 4 + _MARGIN), None)))
    return (head + mark + tail[len(tail) - (room - room // 4) :])[:limit]


def error_info(error: BaseException, *, skip: int = 0) -> ErrorInfo:
    """What is stored of an exception: its type's name, message and traceback, cut to documented lengths.

    skip: outermost frames of the traceback to leave out (the caller's own).
    Never raises, whatever the exception's own code does, and keeps no reference to it.
    """
    return ErrorInfo(_type_name(error), _message(error, MAX_MESSAGE), _traceback(error, skip))


def _type_name(error: BaseException) -> str:
    try:
        return clean(str(type(error).__name__), MAX_TYPE)
    except BaseException:  # noqa: BLE001 - a metaclass is somebody else's code
        return "unknown"


def _message(error: BaseException, limit: int) -> str:
    try:
        return clean(str(error), limit)
    except BaseException as problem:  # noqa: BLE001 - __str__ is somebody else's code
        return f"<{_type_name(error)}: its text cannot be had, {_type_name(problem)}>"


def _traceback(error: BaseException, skip: int) -> str | None:
    try:
        return middle_cut("".join(_chain(error, skip)), MAX_TRACEBACK)
    except BaseException:  # noqa: BLE001 - the frames are somebody else's; the bare outcome must do
        return None


def _chain(error: BaseException, skip: int) -> list[str]:
    """The tracebacks of an error and its causes, as Python prints them: the first cause on top."""
    links, left_out = _links(error)
    parts: list[str] = []
    for place in range(len(links) - 1, -1, -1):
        parts += _one(links[place][0], skip if place == 0 else 0)
        if left_out and place == _NEAR:
            parts.append(f"\n… [{left_out} more errors in the chain] …\n\n")
        elif place > 0:
            parts.append(f"\n{links[place - 1][1]}\n\n")
    return parts


_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def _links(error: BaseException) -> tuple[list[tuple[BaseException, str]], str]:
    """The error and its causes, each with the words between it and its cause; and how many were left out."""
    near: list[tuple[BaseException, str]] = []
    first: deque[tuple[BaseException, str]] = deque(maxlen=_FIRST)
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _REACH:
        seen.add(id(link))
        cause = link.__cause__
        following = cause or (None if link.__suppress_context__ else link.__context__)
        joint = _CAUSE if cause is not None else _CONTEXT
        (near if len(near) < _NEAR else first).append((link, joint))
        link = following
    count = len(seen) - len(near) - len(first)
    cut = link is not None and len(seen) == _REACH
    return near + list(first), f"{count:,}{' or more' if cut else ''}" if count or cut else ""


def _one(error: BaseException, skip: int) -> list[str]:
    parts = []
    if error.__traceback__ is not None:
        parts += ["Traceback (most recent call last):\n", *_frames(error.__traceback__, skip)]
    message = _message(error, MAX_MESSAGE)
    parts.append(f"{_full_name(error)}: {message}\n" if message else f"{_full_name(error)}\n")
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, (list, tuple)):
        parts += [f"{clean(note, MAX_MESSAGE)}\n" for note in notes[:10] if isinstance(note, str)]
    if isinstance(error, BaseExceptionGroup):
        parts += [f"  | {_full_name(one)}: {_message(one, 500)}\n" for one in error.exceptions[:20]]
    return parts


def _frames(tb: TracebackType, skip: int) -> list[str]:
    """The lines of a traceback: its outermost and innermost frames, since a deep recursion has a million."""
    head: list[tuple[FrameType, int]] = []
    tail: deque[tuple[FrameType, int]] = deque(maxlen=_FRAMES_TAIL)
    count = 0
    step: TracebackType | None = tb
    while step is not None:
        if count >= skip:
            (head if len(head) < _FRAMES_HEAD else tail).append((step.tb_frame, step.tb_lineno))
        count += 1
        step = step.tb_next
    left_out = max(count - skip, 0) - len(head) - len(tail)
    lines = _formatted(head)
    if left_out:
        lines.append(f"  … [{left_out:,} more frames] …\n")
    return lines + _formatted(list(tail))


def _formatted(frames: list[tuple[FrameType, int]]) -> list[str]:
    return traceback.StackSummary.extract(iter(frames)).format()


def _full_name(error: BaseException) -> str:
    module = getattr(type(error), "__module__", None)
    plain = not isinstance(module, str) or module in ("builtins", "__main__")
    return _type_name(error) if plain else f"{module}.{_type_name(error)}"
