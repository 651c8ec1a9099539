"""Child processes that speak in lines: JSON out of them, one bare line into them to say go."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.common import BenchError

ROOT = Path(__file__).resolve().parent.parent
ANSWER_S = 600.0
LEAVE_S = 40.0


def environment(url: str) -> dict[str, str]:
    """The environment of a child: no setting of this shell's may change what is measured."""
    foreign = ("QUEUETY_", "PG", "DATABASE_URL", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "QUEUETY_DATABASE_URL": url}


class Child:
    """A module run by an interpreter of its own; a context manager that ends it."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        url: str,
        python: str = sys.executable,
        extra: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.module = module
        self._rest = b""
        self.process = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=ROOT,
            env=environment(url) | (extra or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, limit_s: float = ANSWER_S) -> dict[str, Any]:
        """The next line that the child says."""
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([number], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BenchError(f"{self.module} says nothing for {limit_s:g} s")
            said = os.read(number, 65536)
            if not said:
                raise BenchError(f"{self.module} ended with code {self.process.wait()}")
            self._rest += said
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def go(self) -> None:
        """Let the child begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def check(self) -> None:
        """Raise if the child has ended by an error."""
        if self.process.poll():
            raise BenchError(f"{self.module} ended with code {self.process.returncode}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the child, with patience."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
