"""What goes over a worker's socket: frames of a head (length of the body, kind, number of the call) and a body."""

from __future__ import annotations

import socket
import struct
from enum import IntEnum

HEAD = struct.Struct("!QBQ")
_SMALL = 1 << 14  # bytes


class Kind(IntEnum):
    """What a frame says."""

    CALL = 1  # to the worker: name of the function, a NUL, pickled arguments
    QUIT = 2  # to the worker: leave
    READY = 3  # the worker can be given a call; about no call, so its number is 0
    BEGUN = 4  # the call has arrived whole, and the work begins
    VALUE = 5  # a pickled result
    RAISED = 6  # a pickled `Raised`
    UNSENT = 7  # the function returned, but its result cannot be pickled: a text
    REFUSED = 8  # the call cannot be made, and nothing was run: a text
    SPENT = 9  # instead of READY: the worker can be given nothing more, as a text says why; its number is 0


Raised = tuple[str, str, str, bytes | None]  # type's name, its text, traceback, the pickled exception

ANSWERS = frozenset({Kind.VALUE, Kind.RAISED, Kind.UNSENT, Kind.REFUSED})
ABOUT_NO_CALL = frozenset({Kind.QUIT, Kind.READY, Kind.SPENT})


def frame(kind: Kind, number: int, *parts: bytes) -> list[bytes]:
    """The parts of a frame, not joined: a body may be large."""
    return [HEAD.pack(sum(map(len, parts)), kind, number), *parts]


def read_frame(link: socket.socket) -> tuple[Kind, int, bytearray] | None:
    """Wait for a whole frame; None if the other end has closed."""
    head = _exactly(link, HEAD.size)
    if head is None:
        return None
    length, kind, number = HEAD.unpack(head)
    body = _exactly(link, length)
    return None if body is None else (Kind(kind), number, body)


def write(link: socket.socket, parts: list[bytes]) -> None:
    """Send parts of frames; small ones at once, so that they arrive together."""
    for part in [b"".join(parts)] if sum(map(len, parts)) <= _SMALL else parts:
        link.sendall(part)


def _exactly(link: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = link.recv_into(view[have:])
        if not count:
            return None
        have += count
    return data
