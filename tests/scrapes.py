"""What a pool tells of itself over HTTP, as tests read it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from http.client import HTTPConnection
from typing import NamedTuple

from tests.daemon import Daemon, until

PROMTOOL = shutil.which("promtool")

_AT = re.compile(r"http at (\S+:\d+): /livez")
_SAMPLE = re.compile(r"^([a-z_:0-9]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


class Reply(NamedTuple):
    status: int
    text: str
    kind: str


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


def address(pool: Daemon) -> str:
    """host:port of a pool that was started with --http=127.0.0.1:0."""
    found = until(lambda: _AT.search(pool.log()), 30, "an address in the log")
    return str(found[1])


def get(at: str, path: str, *, accept: str = "", method: str = "GET") -> Reply:
    connection = HTTPConnection(at, timeout=10)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return Reply(response.status, response.read().decode(), response.getheader("Content-Type", ""))
    finally:
        connection.close()


def samples(text: str) -> dict[str, list[Sample]]:
    """Samples by name, parsed apart from the product."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        match = _SAMPLE.match(line)
        assert match, line
        found[match[1]].append(Sample(dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return found


def value(text: str, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels; 0 if there is none."""
    return sum(
        one.value for one in samples(text)[name] if all(one.labels.get(k) == v for k, v in labels.items())
    )


def lint(text: str) -> str:
    """What promtool has to say against names and format; empty: nothing."""
    assert PROMTOOL
    said = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30
    )
    return said.stdout + said.stderr
