"""A receiver of webhooks: a real HTTP server in a thread, that keeps what it gets and answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Got:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """got: requests in order.  script: answers still to give, (status, headers); then 204 for ever."""

    port: int
    secure: bool = False
    got: list[Got] = field(default_factory=list)
    script: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    body: bytes = b""
    hold: threading.Event = field(default_factory=threading.Event)  # cleared: answers wait
    drip: bool = False  # a byte of the answer's head now and then, never all

    @property
    def url(self) -> str:
        return f"http{'s' * self.secure}://localhost:{self.port}/hook?a=1"

    def answer(self, *statuses: int, headers: Mapping[str, str] | None = None) -> None:
        self.script += [(status, headers or {}) for status in statuses]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        mine: Receiver = self.server.receiver  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        mine.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        if mine.drip:
            try:
                while not mine.hold.wait(0.1):
                    self.wfile.write(b"H")
            except OSError:
                return
        mine.hold.wait(60)
        status, headers = mine.script.pop(0) if mine.script else (204, {})
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(mine.body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(mine.body)
        except OSError:
            return

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver(port: int = 0, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver on the loopback address. context: speak TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    mine = Receiver(server.server_address[1], secure=context is not None)
    mine.hold.set()
    server.receiver = mine  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield mine
    finally:
        mine.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
