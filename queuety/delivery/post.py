"""One POST to a receiver: within a time, to a checked address, and with little read of the answer."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import queuety
from queuety.delivery import address, signature
from queuety.delivery.address import AddressRefused, Place, Target
from queuety.errors import QueuetyError
from queuety.units import shown

CONNECT_S = 5.0
READ_MOST = (
    16 * 1024
)  # bytes of an answer's body that are read, for the receiver's sake: nobody looks at them
READ_S = 1.0
LONGEST_PAUSE_S = 86_400.0


class DeliveryFailed(QueuetyError):
    """A receiver did not take a delivery. status: its answer, None if there was none.

    pause_s: for which it has asked.
    """

    def __init__(
        self, message: str, hint: str = "", *, status: int | None = None, pause_s: float | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. id: the same at every attempt.  content: the object {type, timestamp, data}."""

    id: str
    content: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """The same bytes at every attempt."""
        return json.dumps(self.content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def post(
    url: str,
    message: Message,
    secrets: Sequence[str],
    *,
    headers: Mapping[str, str] | None = None,
    allow_private: bool = False,
    limit_s: float = 15.0,
) -> int:
    """Send a message and return the status, 200 to 299, of the answer.

    secrets: each signs; the current one first.  limit_s: seconds for everything but the name's look-up.
    Raises DeliveryFailed for any other answer and for none, AddressRefused.
    """
    where = address.target(url)
    try:
        places = address.resolve(where, allow_private=allow_private)
        deadline = time.monotonic() + limit_s
        sock = _Timed(_connect(places, deadline), deadline)
        try:
            return _exchange(where, sock, _headers(message, secrets, headers or {}), message.body)
        finally:
            sock.close()
    except (DeliveryFailed, AddressRefused):
        raise
    except TimeoutError:
        raise DeliveryFailed(f"{where.host} did not answer within {limit_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise DeliveryFailed(
            f"the certificate of {where.host} does not hold: {error.verify_message}"
        ) from None
    except http.client.RemoteDisconnected:
        raise DeliveryFailed(f"{where.host} closed the connection without an answer") from None
    except http.client.HTTPException as error:
        said = f"{type(error).__name__}, {shown(str(error))}"  # what it sent, whatever that was
        raise DeliveryFailed(f"{where.host} answered what is not HTTP: {said}") from None
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DeliveryFailed(f"{where.host} cannot be reached: {said}") from None


def _headers(message: Message, secrets: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
    at = int(time.time())
    return {
        **more,
        "Content-Type": "application/json",
        "User-Agent": f"Queuety/{queuety.__version__}",
        "Connection": "close",
        "webhook-id": message.id,
        "webhook-timestamp": str(at),
        "webhook-signature": signature.sign(secrets, message.id, at, message.body),
    }


def _connect(places: Sequence[Place], deadline: float) -> socket.socket:
    """Connect to the first of these addresses that answers."""
    failure: OSError = OSError("the name has no address")
    for place in places:
        sock = socket.socket(place.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(min(CONNECT_S, _left(deadline)))
            sock.connect(place.address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _exchange(where: Target, sock: _Timed, headers: Mapping[str, str], body: bytes) -> int:
    connection = http.client.HTTPConnection(where.host, where.port)
    if where.secure:
        connection.default_port = 443
        sock.secure(where.host)
    connection.sock = sock  # it is never asked to connect by itself
    connection.request("POST", where.path, body=body, headers=dict(headers))
    answer = connection.getresponse()
    sock.hurry(READ_S)
    with suppress(OSError, http.client.HTTPException, ValueError):
        answer.read(READ_MOST)
    status = answer.status
    if 200 <= status < 300:
        return status
    text = f"{where.host} answered {status}"
    if 300 <= status < 400:
        raise DeliveryFailed(
            f"{text}: a redirect, which is not followed", "give the address itself", status=status
        )
    pause = _pause(answer.headers.get("Retry-After")) if status in (429, 503) else None
    raise DeliveryFailed(text, status=status, pause_s=pause)


def _pause(said: str | None) -> float | None:
    """Seconds that a receiver asks to wait for; None if it does not, or unclearly. said: seconds or a date."""
    if said is None:
        return None
    text = said.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), LONGEST_PAUSE_S)
    try:
        wait = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait, 0.0), LONGEST_PAUSE_S)


class _Timed:
    """A socket whose every step ends by one deadline: who sends a byte a second is not waited for, either."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def secure(self, host: str) -> None:
        """Speak TLS from now on, with whoever can prove to be this host."""
        self._sock.settimeout(_left(self._deadline))
        self._sock = _context().wrap_socket(self._sock, server_hostname=host)

    def hurry(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def receive(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)

    def makefile(self, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: _Timed) -> None:
        self._of = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._of.receive(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@cache
def _context() -> ssl.SSLContext:
    """The machine's certificates, or those of SSL_CERT_FILE."""
    return ssl.create_default_context()
