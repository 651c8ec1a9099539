"""The HTTP API for tests: within the process, and `queuety web` as a process of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from queuety import Queuety
from queuety.web import create_app
from tests.daemon import Daemon, daemon, until

HOME = "http://127.0.0.1"
Json = dict[str, Any]


@contextmanager
def client(app: Queuety, **given: Any) -> Iterator[TestClient]:
    """A client of the API within this process; open unless told otherwise."""
    access = given if {"authorize", "tokens", "no_auth"} & set(given) else {"no_auth": True, **given}
    with TestClient(create_app(app, **access), base_url=HOME) as made:
        yield made


class Web:
    """`queuety web` in a process of its own."""

    def __init__(self, process: Daemon, url: str) -> None:
        self.process = process
        self.url = url

    def client(self, **given: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **given)


@contextmanager
def web(url: str, *arguments: str, log: Path, env: dict[str, str] | None = None) -> Iterator[Web]:
    """Run `queuety web` on any port until the block ends."""
    with daemon(url, "--port=0", *arguments, log=log, command="web", env=env) as process:
        found = until(lambda: re.search(r"listening on (http://\S+),", process.log()), 30, "it listens")
        yield Web(process, found[1])
