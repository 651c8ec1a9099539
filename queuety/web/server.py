"""`queuety web`: the HTTP API in a process of its own, under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from queuety.errors import UsageError
from queuety.web import tokens
from queuety.web.access import in_database, loopback
from queuety.web.application import build

if TYPE_CHECKING:
    from queuety.app import Queuety

log = logging.getLogger("queuety.web")

STOP_S = 5  # within which open requests have to end after SIGTERM; streams end at once
HEAD_S = 10.0  # within which the head of a request has to arrive
HEAD_BYTES = 32 * 1024  # a request line and its headers
CONNECTIONS_BESIDE = 200  # besides those of streams
BACKLOG = 512


def run(app: Queuety, *, insecure: bool) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError if nobody is asked who he is where others can come."""
    settings = app.settings
    host, port = settings.web_host, settings.web_port
    asked = not insecure and (settings.web_auth or not loopback(host))
    if asked and not (tokens.parse(settings.web_tokens) or in_database(app)):
        raise UsageError(
            f"nobody could use the HTTP API on {host}: it asks for tokens, and there are none"
            if settings.web_auth
            else f"{host} can be reached from other machines, and there are no tokens",
            "make one: queuety web token add NAME --role=viewer|operator|admin"
            + ("" if settings.web_auth else "; or --insecure-no-auth, if something else asks who comes"),
        )
    if insecure and not loopback(host):
        log.warning("everybody who can reach %s may do everything: --insecure-no-auth", host)
    names = [name for name in (settings.web_allow_hosts or "").split(",") if name.strip()]
    made = build(app, tokens=asked, no_auth=not asked, loopback=not insecure, hosts=names)
    listening = _bind(host, port)
    config = uvicorn.Config(
        made,
        http=_Bounded,
        ws="none",
        lifespan="off",
        root_path=(settings.web_root_path or "").rstrip("/"),
        log_config=None,
        access_log=False,  # it would hold what is in query strings
        server_header=False,
        proxy_headers=False,  # who is loopback is decided by the connection
        timeout_keep_alive=15,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=HEAD_BYTES,
        limit_concurrency=settings.web_streams + CONNECTIONS_BESIDE,
        backlog=BACKLOG,
    )
    address = listening.getsockname()
    shown = f"[{address[0]}]" if listening.family == socket.AF_INET6 else address[0]
    log.info("listening on http://%s:%d, %s", shown, address[1], "tokens are asked for" if asked else "open")
    with listening, _quiet_end():
        uvicorn.Server(config).run([listening])


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Let a stop by signal be the clean end that it is: uvicorn raises the signal once more when it has stopped."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(BACKLOG)  # before we say so
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}", "choose --host and --port"
        ) from None
    return made


class _Bounded(H11Protocol):
    """Closes a connection whose request's head does not arrive in time; uvicorn would wait for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # a head has arrived
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._close_late)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
