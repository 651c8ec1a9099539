"""What the server says to a new connection. Just enough of the protocol to need no driver."""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

_STARTING_OR_STOPPING = "57P03"
_TOO_MANY_CONNECTIONS = "53300"


@dataclass(frozen=True)
class Answer:
    """Somebody listens.

    ready:    connections to the database are taken.
    version:  the server's, such as "18.6"; None before it is ready.
    pid:      of the listening process; None if it cannot be seen from here (another container).
    refusal:  why it will not let us in, if waiting cannot help.
    """

    ready: bool
    version: str | None = None
    pid: int | None = None
    refusal: str = ""


def ask(path: Path, *, timeout_s: float = 5.0) -> Answer | None:
    """Connect as a client would; None if nobody listens on this socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(os.fsencode(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (BlockingIOError, TimeoutError):  # its backlog is full
            return Answer(ready=False)
        pid = _listener(client)
        try:
            return _introduce(client, pid)
        except (TimeoutError, ConnectionError):
            return Answer(ready=False, pid=pid)


def _introduce(client: socket.socket, pid: int | None) -> Answer:
    words = b"user\0queuety\0database\0queuety\0application_name\0queuety start\0\0"
    client.sendall(struct.pack("!ii", 8 + len(words), 3 << 16) + words)
    version = None
    with client.makefile("rb") as stream:
        while True:
            head = stream.read(5)
            if len(head) < 5:
                return Answer(ready=False, pid=pid)
            kind, length = struct.unpack("!ci", head)
            body = stream.read(length - 4)
            if kind == b"E":
                return _refused(body, pid)
            if kind == b"R" and body != b"\0\0\0\0":
                return Answer(ready=False, pid=pid, refusal="it asks for a password")
            if kind == b"S" and body.startswith(b"server_version\0"):
                version = body.split(b"\0")[1].decode().split(" ")[0]
            if kind == b"Z":
                client.sendall(b"X\0\0\0\4")
                return Answer(ready=True, version=version, pid=pid)


def _refused(body: bytes, pid: int | None) -> Answer:
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    code = fields.get(b"C", "")
    if code == _TOO_MANY_CONNECTIONS:
        return Answer(ready=True, pid=pid)
    if code == _STARTING_OR_STOPPING:
        return Answer(ready=False, pid=pid)
    return Answer(ready=False, pid=pid, refusal=fields.get(b"M", code))


def _listener(client: socket.socket) -> int | None:
    """The process that called listen(), by the kernel's word: a pid in a file may be anybody's by now."""
    if sys.platform == "darwin":
        sol_local, local_peerpid = 0, 2  # sys/un.h
        (pid,) = struct.unpack("i", client.getsockopt(sol_local, local_peerpid, 4))
    else:
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid) or None
