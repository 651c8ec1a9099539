"""The environments of the peers: made once, kept in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child import Child
from bench.common import BenchError, Options


@dataclass(slots=True)
class Peer:
    """A queue to compare with.

    packages: what pip installs.  python: the oldest version that it runs on.  share: it is given one job in so many,
    since it takes that much longer.  left: finds a row as long as a job has not ended.
    """

    name: str
    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    share: int = 1
    interpreter: str = ""
    version: str = ""
    settings: str = ""
    left: str = ""

    def install(self, url: str) -> None:
        """Make the peer's schema in an empty database."""
        told = self._ask(url, "install")
        self.version, self.settings, self.left = told["version"], told["settings"], told["left"]

    def load(self, url: str, jobs: int) -> float:
        """Write no-op jobs in bulk into an emptied queue; returns jobs per second."""
        return jobs / float(self._ask(url, "load", str(jobs))["seconds"])

    def worker(self, url: str) -> Child:
        """A worker process that is ready to begin; it tells when a stamp job began."""
        return self._child(url, "work")

    def client(self, url: str, jobs: int) -> Child:
        """A process that writes jobs one by one once it is told to."""
        return self._child(url, "single", str(jobs))

    def pulse(self, url: str) -> Child:
        """A process that writes a stamp job whenever it is told to."""
        return self._child(url, "pulse")

    def _child(self, url: str, *arguments: str) -> Child:
        return Child(f"bench.peers.{self.name}", *arguments, url=url, python=self.interpreter)

    def _ask(self, url: str, *arguments: str) -> dict[str, Any]:
        with self._child(url, *arguments) as child:
            return child.hear()


_PEERS = (
    Peer("pgqueuer", ("pgqueuer[asyncpg]",)),
    Peer("oban", ("oban",), python=(3, 12), share=4),
    Peer("chancy", ("chancy", "psycopg[binary]"), share=4),
    Peer("procrastinate", ("procrastinate", "psycopg[binary]"), share=25),
)
NAMES = tuple(peer.name for peer in _PEERS)


def peers(options: Options) -> Iterator[Peer]:
    """The peers asked for, installed; one that cannot be is told on stderr and left out."""
    for peer in _PEERS:
        if peer.name not in options.peers:
            continue
        try:
            peer.interpreter = peer.interpreter or _environment(peer, options.peer_python)
        except BenchError as error:
            print(f"without {peer.name}: {error}", file=sys.stderr)
            continue
        yield peer


def _environment(peer: Peer, wanted: str) -> str:
    """Path of an interpreter that has the peer installed."""
    base = _interpreter(peer.python, wanted)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "queuety-bench"
    folder = cache / peer.name
    own = folder / "bin" / "python"
    mark = folder / "installed.json"
    recipe = json.dumps([base, *peer.packages])
    if mark.exists() and mark.read_text("utf-8") == recipe:
        return str(own)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {peer.name} into {folder}", file=sys.stderr)
    _run([base, "-m", "venv", str(folder)])
    _run([str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages])
    mark.write_text(recipe, "utf-8")
    return str(own)


def _interpreter(oldest: tuple[int, int], wanted: str) -> str:
    """An interpreter that is new enough: our own, the one asked for, or the first one on the path."""
    newer = [f"python3.{minor}" for minor in range(oldest[1], 16)]
    names = [sys.executable, *filter(None, [wanted]), *newer]
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        told = subprocess.run(
            [path, "-c", f"import sys; print(sys.version_info >= {oldest})"],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.stdout.strip() == "True":
            return path
    raise BenchError(f"it needs Python {oldest[0]}.{oldest[1]}: name one with --peer-python")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise BenchError(f"{' '.join(command[1:4])} failed: {lines[-1]}")
