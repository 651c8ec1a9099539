"""A small HTTP server for probes and scrapes, inside another loop: nothing here ever waits.

GET and HEAD of a few paths, one request a connection. Whatever a client does costs at most a place among MOST, HEAD
bytes and LONGEST_S seconds; one that comes when all places are taken gets that of the oldest.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from queuety.errors import UsageError
from queuety.process.wake import Waker

log = logging.getLogger("queuety.http")

MOST = 32  # connections at a time
HEAD = 8192  # bytes of a request's head
LONGEST_S = 10.0  # for a request and its answer
TURN = 16  # connections accepted in one turn of the loop
PAUSE_S = 1.0  # without accepting, when there is no descriptor left


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path answers."""

    status: HTTPStatus
    body: str
    kind: str = "text/plain; charset=utf-8"


@dataclass(slots=True)
class _Client:
    sock: socket.socket
    until: float
    heard: bytes = b""
    left: memoryview | None = None  # of the answer, not sent yet
    answered: bool = False


class Listener:
    """Listens at an address from the start. answer: gives the answer to a path and the Accept header; must be quick."""

    def __init__(self, address: str, answer: Callable[[str, str], Answer | None]) -> None:
        """Raises UsageError if nobody can listen there."""
        self._answer = answer
        self._sock = _listen(address)
        self._pid = os.getpid()
        self._clients: dict[int, _Client] = {}
        self._paused_until = 0.0
        self._waker: Waker | None = None
        host, port = self._sock.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback

    def start(self, waker: Waker) -> None:
        """Be woken by this process' waker."""
        self._waker = waker
        waker.watch(self._sock.fileno())
        log.info("http at %s: /livez /readyz /startupz /metrics", self.address)
        if not self.loopback:
            log.warning(
                "http at %s can be read by whoever reaches it: names of queues and handlers, and how many jobs",
                self.address,
            )

    def turn(self, ready: Iterable[int], now: float) -> None:
        """Do what can be done without waiting. ready: descriptors for which something is to be done."""
        assert self._waker is not None
        for fd in ready:
            client = self._clients.get(fd)
            if client is not None:
                self._serve(client, now)
            elif fd == self._sock.fileno():
                self._accept(now)
        for client in [one for one in self._clients.values() if now > one.until]:
            self._drop(client)
        if self._paused_until and now >= self._paused_until:
            self._paused_until = 0.0
            self._waker.watch(self._sock.fileno())

    def close(self) -> None:
        """Close all. Also in a child of the pool, which inherits the descriptors and has no use for them."""
        for client in self._clients.values():
            client.sock.close()
        self._clients.clear()
        self._sock.close()

    def _accept(self, now: float) -> None:
        assert self._waker is not None
        for _ in range(TURN):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # It would be ready for ever.
                    self._waker.unwatch(self._sock.fileno())
                    self._paused_until = now + PAUSE_S
                    return
                continue  # that client has gone again
            sock.setblocking(False)
            while len(self._clients) >= MOST:
                self._drop(next(iter(self._clients.values())))
            self._clients[sock.fileno()] = _Client(sock, now + LONGEST_S)
            self._waker.watch(sock.fileno())

    def _serve(self, client: _Client, now: float) -> None:
        try:
            if client.left is not None:
                self._send(client)
            elif client.answered:
                if not client.sock.recv(65536):
                    self._drop(client)
            else:
                self._read(client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        chunk = client.sock.recv(HEAD)
        if not chunk:
            self._drop(client)
            return
        client.heard += chunk
        end = client.heard.find(b"\r\n\r\n")
        if end < 0 and len(client.heard) < HEAD:
            return
        if 0 <= end < HEAD:
            answer, body = self._respond(client.heard[:end].decode("latin-1"))
        else:
            answer, body = Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too large\n"), True
        client.heard = b""
        client.left = memoryview(_response(answer, with_body=body))
        self._send(client)

    def _respond(self, head: str) -> tuple[Answer, bool]:
        """The answer, and whether its body is wanted."""
        line, *fields = head.split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
            return Answer(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1\n"), True
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n"), True
        accept = ",".join(
            value for name, _, value in (one.partition(":") for one in fields) if name.lower() == "accept"
        )
        found = self._answer(target.partition("?")[0], accept)
        nothing = Answer(HTTPStatus.NOT_FOUND, "there are /livez /readyz /startupz /metrics\n")
        return found or nothing, method == "GET"

    def _send(self, client: _Client) -> None:
        assert client.left is not None
        assert self._waker is not None
        try:
            client.left = client.left[client.sock.send(client.left) :]
        except BlockingIOError:
            pass
        if client.left:
            self._waker.watch(client.sock.fileno(), writing=True)
            return
        client.left, client.answered = None, True
        # Closed at once, with something unread, the answer would be lost on its way.
        self._waker.watch(client.sock.fileno())
        client.sock.shutdown(socket.SHUT_WR)

    def _drop(self, client: _Client) -> None:
        assert self._waker is not None
        number = client.sock.fileno()
        self._clients.pop(number, None)
        self._waker.unwatch(number)
        client.sock.close()


def _response(answer: Answer, *, with_body: bool) -> bytes:
    body = answer.body.encode()
    head = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET, HEAD")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (body if with_body else b"")


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host or "0.0.0.0",
            int(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(MOST)
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            with suppress(OSError):
                sock.close()
        hint = "give each pool of a host an address of its own, such as 127.0.0.1:9191"
        if isinstance(error, socket.gaierror):
            hint = "give an address of this host, such as 127.0.0.1:9191, or :9191 for all of them"
        raise UsageError(f"nobody can listen at http = {address}: {error.strerror or error}", hint) from None
    return sock
