"""What every peer's module does: commands by argument, answers in JSON lines.

install                     make the schema; says version, settings and the statement that finds a job left
load N                      empty the queue, write N no-op jobs in bulk; says the seconds that the writing took
single N                    wait for go, write N no-op jobs one by one; says when it ended
pulse                       at each go write a stamp job; says when it called and when the call returned
work                        wait for go, work until ended; a stamp job says when it began

Times are CLOCK_MONOTONIC, which all processes of a host share. Nothing but the standard library is needed here.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from bench.speech import hear, say, wait_for_go


class Driver(ABC):
    """One peer. package: as PyPI knows it.  settings: those that are not its defaults, for the table."""

    package = ""
    settings = ""
    left = ""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def install(self) -> None:
        """Make the schema."""

    @abstractmethod
    async def open(self) -> None:
        """Connect as a client."""

    @abstractmethod
    async def clear(self) -> None:
        """Empty the queue and what is kept of its past."""

    @abstractmethod
    async def load(self, jobs: int) -> None:
        """Write no-op jobs in bulk, the fastest way."""

    @abstractmethod
    async def noop(self) -> None:
        """Write a no-op job."""

    @abstractmethod
    async def stamp(self) -> None:
        """Write a job that calls `began`."""

    @abstractmethod
    async def work(self, ready: Callable[[], None]) -> None:
        """Connect, call `ready`, which returns at go, then work until ended."""

    async def close(self) -> None:  # noqa: B027 - most need none
        """Hang up as a client."""


def began() -> None:
    """Say that a stamp job begins now."""
    say(began=time.monotonic_ns())


async def _command(driver: Driver, name: str, number: int) -> None:
    if name == "install":
        await driver.install()
        version = importlib.metadata.version(driver.package)
        say(version=version, settings=driver.settings, left=driver.left)
        return
    if name == "work":
        await driver.work(wait_for_go)
        return
    await driver.open()
    if name == "load":
        await driver.clear()
        start = time.perf_counter()
        await driver.load(number)
        say(seconds=time.perf_counter() - start)
    elif name == "single":
        await driver.noop()
        wait_for_go()
        for _ in range(number):
            await driver.noop()
        say(ended=time.monotonic())
    elif name == "pulse":
        say(ready=True)
        while True:
            hear()
            called = time.monotonic_ns()
            await driver.stamp()
            say(called=called, returned=time.monotonic_ns())
    await driver.close()


def main(kind: type[Driver], run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """Run the command that the arguments name. run: the event loop of choice."""
    logging.disable(logging.WARNING)  # a line for each job would be measured too
    name, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    run(_command(kind(os.environ["QUEUETY_DATABASE_URL"]), name, number))
