"""A real pool in a process of its own, and the file in which handlers note what they really did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

import psutil

from tests import ROOT

APP = "tests.apps.basic:app"


@dataclass(frozen=True)
class Entry:
    """One line of the handlers' own file."""

    job: int
    attempt: int
    pid: int
    what: str
    at: float


def read_ledger(path: Path) -> list[Entry]:
    """What handlers have noted so far: `job attempt pid start|end time`, times of the monotonic clock."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        job, attempt, pid, what, at = line.split()
        entries.append(Entry(int(job), int(attempt), int(pid), what, float(at)))
    return entries


def until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Wait for a condition; its last value is returned. Fails after `seconds`.

    It is looked at every 20 ms, and more rarely the longer it takes: many a look costs a connection.
    """
    began = time.monotonic()
    deadline = began + seconds
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        assert now < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(min(max(0.02, (now - began) / 50), 0.1))


def children_of(pid: int) -> list[psutil.Process]:
    """As psutil, which looks at every process of the machine for it; this is asked many times a second."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        before, now = None, listed.read_text()
        while now != before:  # a list may lack somebody while another one leaves
            before, now = now, listed.read_text()
    except (FileNotFoundError, ProcessLookupError):  # no Linux, or no such process
        return psutil.Process(pid).children()
    found = []
    for child in now.split():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(child)))
    return found


def remaining(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so long. Orphans that ended may be zombies until init looks: that is its affair."""
    deadline = time.monotonic() + seconds
    left = list(processes)
    while True:
        left = [one for one in left if _runs(one)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Daemon:
    """`queuety …` as a child process, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log_path = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self, word: str) -> list[psutil.Process]:
        """Living children whose title names this kind of process: worker, keeper."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in children_of(self.pid):
                with suppress(psutil.NoSuchProcess):
                    if child.status() != psutil.STATUS_ZOMBIE and f"queuety: {word}" in " ".join(
                        child.cmdline()
                    ):
                        found.append(child)
        return found

    def workers(self) -> list[psutil.Process]:
        return self.children("worker")

    def keeper(self) -> psutil.Process:
        found: list[psutil.Process] = until(lambda: self.children("keeper"), what="a keeper")
        return found[0]

    def able(self) -> list[psutil.Process]:
        """Workers that can claim."""
        found = []
        for one in self.workers():
            with suppress(psutil.NoSuchProcess):  # it has left meanwhile
                if "starts" not in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def ready(self, count: int = 1) -> list[psutil.Process]:
        """Wait for so many workers that can claim."""

        found: list[psutil.Process] = until(
            lambda: len(self.able()) >= count and self.able(), 30, f"{count} workers\n{self.log()}"
        )
        return found

    def signal(self, number: Signals) -> None:
        os.kill(self.pid, number)

    def signal_group(self, number: Signals) -> None:
        """To every process of the pool, as a terminal or a process manager does."""
        for process in [*psutil.Process(self.pid).children(), psutil.Process(self.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def stop(self, seconds: float = 20.0) -> int:
        self.signal(SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL for the whole pool, as a dying host does."""
        victims: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            victims = [parent, *parent.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        self.process.wait(10)
        assert remaining(victims, 10) == []


@contextmanager
def daemon(
    url: str,
    *arguments: str,
    app: str = APP,
    ledger: Path | None = None,
    log: Path,
    command: str = "work",
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Run `queuety work …` until the block ends; whatever is left of it then is killed."""
    environment = {
        **os.environ,
        "QUEUETY_DATABASE_URL": url,
        "QUEUETY_APP": app,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **({"QUEUETY_TEST_LEDGER": str(ledger)} if ledger else {}),
        **(env or {}),
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "queuety.cli.main", command, *arguments],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
    running = Daemon(process, log)
    try:
        yield running
    finally:
        if process.poll() is None:
            running.kill()
