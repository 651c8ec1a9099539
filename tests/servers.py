"""PostgreSQL servers of a test's own, to be killed and restarted, and a network that can fall silent."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from queuety import embedded
from queuety.store import migrations
from tests.daemon import until

_FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "60", "shared_buffers": "32MB"}


class Server:
    """A server that may die and come back."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self._directory = directory
        self._settings = settings
        self._shares = [embedded.start(directory, settings=settings)]
        self.url = self._shares[0].url

    def kill(self) -> None:
        """Immediate shutdown: every session breaks, nothing is tidied up."""
        pid = embedded.status(self._directory).pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        until(lambda: not embedded.status(self._directory).running, 20, "the server's end")

    def start(self) -> None:
        self._shares.append(embedded.start(self._directory, settings=self._settings))

    def log(self) -> str:
        logs = [path for path in self._directory.iterdir() if path.suffix == ".log"]
        return "".join(path.read_text(errors="replace") for path in logs)

    def close(self) -> None:
        for share in self._shares:
            share.release()


@contextmanager
def own_server(**settings: str) -> Iterator[Server]:
    """A migrated server for one test."""
    directory = Path(tempfile.mkdtemp(prefix="queuety-own-"))
    server = Server(directory, {**_FAST, **settings})
    try:
        migrations.migrate(server.url)
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


class Network:
    """A TCP port in front of a server's socket. It can fall silent: nothing is forwarded, nothing is refused."""

    def __init__(self, url: str) -> None:
        folder, port = _address(url)
        self._target = f"{folder}/.s.PGSQL.{port}"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._silent: set[socket.socket] = set()  # what fell silent once stays so, as a lost route does
        self._speaks = True
        self._over = False
        parts = urlsplit(url)
        user = parts.username or "queuety"
        self.url = f"postgresql://{user}@127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def fall_silent(self) -> None:
        self._speaks = False
        self._silent |= set(self._pairs)

    def speak(self) -> None:
        """New connections are forwarded again; those that fell silent stay so."""
        self._speaks = True

    def close(self) -> None:
        self._over = True
        self._thread.join(5)
        for one in [self._listener, *self._pairs]:
            one.close()

    def _run(self) -> None:
        while not self._over:
            watched = [one for one in self._pairs if one not in self._silent]
            readable, _, _ = select.select(
                [*watched, *([self._listener] if self._speaks else [])], [], [], 0.05
            )
            for one in readable:
                if one is self._listener:
                    self._accept()
                elif one in self._pairs and one not in self._silent:
                    self._forward(one)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._target)
        except OSError:
            near.close()
            far.close()
            return
        self._pairs[near], self._pairs[far] = far, near

    def _forward(self, one: socket.socket) -> None:
        other = self._pairs[one]
        data = b""
        with suppress(OSError):
            data = one.recv(65536)
        if data:
            with suppress(OSError):
                other.sendall(data)
                return
        for end in (one, other):
            self._pairs.pop(end, None)
            end.close()


@contextmanager
def network(url: str) -> Iterator[Network]:
    between = Network(url)
    try:
        yield between
    finally:
        between.close()


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return query["host"][0], query.get("port", ["5432"])[0]
