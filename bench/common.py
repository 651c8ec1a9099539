"""What all figures share: the server, the databases, statistics, tables."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from queuety import embedded
from queuety.store import migrations

Connection = psycopg.Connection[tuple[Any, ...]]

POLL_S = 0.01  # between two looks for the end of a drain: the resolution of its time
DRAIN_LIMIT_S = 1800.0


class BenchError(Exception):
    """A figure cannot be taken, and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for. None: each figure has its own default."""

    jobs: int | None = None
    rounds: int | None = None
    samples: int | None = None
    scale: float = 1.0
    seconds: float = 30.0
    busy_ms: float = 50.0
    peers: tuple[str, ...] = ()
    peer_python: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A figure's result. rows: one cell for each column; numbers stay numbers in the JSON."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str | float | int | None, ...]]
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The table for a terminal."""
        cells = [[_shown(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        yield self.title
        for row in ([*self.columns], *cells):
            first, *rest = (
                cell.ljust(width) if not place else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield ("  " + "  ".join([first, *rest])).rstrip()
        yield from (f"  {note}" for note in self.notes)

    def as_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


@dataclass
class Bench:
    """One run: the server, and what has been measured so far."""

    options: Options
    server: embedded.Embedded
    header: dict[str, str]
    tables: list[Table] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    @contextmanager
    def open(cls, options: Options, directory: Path | None = None) -> Iterator[Self]:
        """Start a server with fsync on and default settings in a new folder; both are gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="queuety-bench-", dir=directory))
        try:
            with embedded.start(folder) as server:
                bench = cls(options, server, _header(server, folder))
                for name, text in bench.header.items():
                    print(f"{name + ':':<12}{text}")
                yield bench
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """URL of a fresh database, dropped afterwards."""
        name = sql.Identifier(f"bench_{next(self._numbers)}")
        with connect(self.server.url) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(name))
        url = urlsplit(self.server.url)._replace(path=f"/{name.as_string()[1:-1]}").geturl()
        try:
            if migrated:
                migrations.migrate(url)
            yield url
        finally:
            with connect(self.server.url) as conn:
                conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    def show(self, table: Table) -> None:
        """Print a result and keep it for the JSON."""
        self.tables.append(table)
        print()
        for line in table.lines():
            print(line, flush=True)

    def as_json(self) -> str:
        tables = [table.as_json() for table in self.tables]
        return json.dumps({"header": self.header, "tables": tables}, indent=2)


class Series:
    """Measurements by contestant, taken in turns."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self._values.setdefault(name, []).append(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def median(self, name: str) -> float:
        return statistics.median(self._values[name])

    def spread(self, name: str) -> str:
        """Lowest and highest round, in percent of the median."""
        values, middle = self._values[name], self.median(name)
        return f"{100 * (min(values) / middle - 1):+.0f}…{100 * (max(values) / middle - 1):+.0f} %"

    def ratio(self, name: str, to: str) -> tuple[float, str]:
        """Median of the rounds' own ratios, and their range: what the machine does from round to round cancels."""
        ratios = [a / b for a, b in zip(self._values[name], self._values[to], strict=True)]
        return statistics.median(ratios), f"{min(ratios):.2f}…{max(ratios):.2f}"


def connect(url: str) -> Connection:
    """An autocommit connection with psycopg's own defaults."""
    return psycopg.connect(url, autocommit=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def until(what: str, true: Callable[[], object], limit_s: float = 60.0, pause_s: float = 0.02) -> None:
    """Wait until `true()`; raise BenchError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} has not come true within {limit_s:g} s")
        time.sleep(pause_s)


def until_empty(conn: Connection, look: str, alive: Callable[[], None]) -> float:
    """Wait until the statement `look` finds no row; return the monotonic time of the look that found none.

    alive: called now and then; raises if nobody works any more.
    """
    limit = time.monotonic() + DRAIN_LIMIT_S
    for turn in itertools.count():
        now = time.monotonic()
        if conn.execute(look.encode(), prepare=True).fetchone() is None:
            return now
        if now > limit:
            raise BenchError(f"not drained after {DRAIN_LIMIT_S:g} s")
        if turn % 20 == 0:
            alive()
        time.sleep(POLL_S)
    raise AssertionError


def _shown(cell: str | float | int | None) -> str:
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.2f}"


def _header(server: embedded.Embedded, folder: Path) -> dict[str, str]:
    with connect(server.url) as conn:
        asked = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_sync_method")
        told = {
            name: conn.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone() for name in asked
        }
    shown = {name: str(row[0]) for name, row in told.items() if row}
    system = _filesystem(folder)
    if system == "tmpfs":
        system += " (memory: fsync costs nothing here; give --dir a folder on a disk)"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "PostgreSQL": f"{shown.pop('server_version')}, "
        + ", ".join(f"{name} {value}" for name, value in shown.items()),
        "data on": system,
        "Python": f"{platform.python_version()}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})",
    }


def _filesystem(folder: Path) -> str:
    """Type of the file system under `folder`; "unknown" where the kernel does not tell."""
    found = "unknown"
    try:
        mounts = Path("/proc/mounts").read_text("utf-8").splitlines()
    except OSError:
        return found
    longest = -1
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        if folder.is_relative_to(place) and len(place) > longest:
            longest, found = len(place), kind
    return found
