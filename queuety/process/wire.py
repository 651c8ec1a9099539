"""Lines of JSON between the supervisor and its keeper, over a socket pair."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any


class Wire:
    """One end. Small messages, never blocking for long."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""
        self.closed = False
        sock.setblocking(False)

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """False if the other end is gone or does not read."""
        try:
            self._sock.settimeout(1.0)
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        finally:
            with suppress(OSError):
                self._sock.setblocking(False)
        return True

    def receive(self) -> list[dict[str, Any]]:
        """What has come so far; sets `closed` at the end of the stream."""
        while True:
            try:
                chunk = self._sock.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.closed = True
                break
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        self._sock.close()
