"""Memory as the kernel tells it: what may still be taken, how hard it is pressed, what a run has taken at most.

The container comes first: cgroup v2, then v1, each group from this process' own up to the root, for the tightest one
decides. The host is asked too, since a container may be promised more than there is. Where a system tells none of
this (macOS knows the host only), the answer is None: unknown, never invented.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from queuety.process import host
from queuety.process.ledger import Page, Phase

ROOT = "QUEUETY_TEST_SYSTEM_ROOT"  # a directory with proc/ and sys/ in place of the real ones: for tests

HEADROOM = 128 << 20  # what a worker may take above an application that is larger than the limit by itself
_UNLIMITED = 1 << 60  # cgroup v1 writes the largest page-aligned number for "no limit"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")
_SOME = re.compile(r"^(some|full) avg10=([\d.]+)", re.MULTILINE)

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of the last ten seconds, in percent, that some or all processes stood still for want of memory."""

    some: float
    full: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at one moment, in bytes; None where it is not known.

    available: what may still be taken before the kernel has to kill.  limit: of the container or the host.
    source: what decided, for people: "cgroup v2", "cgroup v1" or "host".
    """

    available: int | None
    limit: int | None
    source: str


class System:
    """Readings of one machine. proc, cgroup: where the kernel's files are."""

    def __init__(self, proc: Path | None = None, cgroup: Path | None = None) -> None:
        root = Path(os.environ.get(ROOT) or "/")
        self._proc = proc or root / "proc"
        self._cgroup = cgroup or root / "sys/fs/cgroup"

    def read(self) -> Reading:
        """What may still be taken, by the tightest of all that limits this process."""
        found = [*self._second(), *self._first(), *self._host()]
        known = [one for one in found if one.available is not None]
        if not known:
            return Reading(None, None, "unknown")
        tightest = min(known, key=lambda one: one.available or 0)
        limits = [one.limit for one in found if one.limit is not None]
        return Reading(max(tightest.available or 0, 0), min(limits, default=None), tightest.source)

    def available(self) -> int | None:
        """Bytes that may still be taken; None if unknown."""
        return self.read().available

    def limit(self) -> int | None:
        """Bytes that this container, or host, has in all; None if unknown."""
        return self.read().limit

    def pressure(self) -> Pressure | None:
        """Memory pressure of this control group, else of the host; None where the kernel does not tell (PSI)."""
        folder = next(self._groups("", self._cgroup), None)
        for path in (folder and folder / "memory.pressure", self._proc / "pressure/memory"):
            if path and (shares := dict(_SOME.findall(_text(path)))):
                return Pressure(float(shares.get("some", 0)), float(shares.get("full", 0)))
        return None

    # ── the sources ───────────────────────────────────────────────────────────────────────────────

    def _second(self) -> Iterator[Reading]:
        """cgroup v2: every group with a limit, from our own up."""
        for folder in self._groups("", self._cgroup):
            limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
            used = _number(folder / "memory.current")
            limit = min((one for one in limits if one is not None), default=None)
            if limit is not None and used is not None:
                yield Reading(limit - used + _reclaimable(folder, ""), limit, "cgroup v2")

    def _first(self) -> Iterator[Reading]:
        """cgroup v1: likewise."""
        for folder in self._groups("memory", self._cgroup / "memory"):
            limit = _number(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.usage_in_bytes")
            if limit is not None and used is not None:
                yield Reading(limit - used + _reclaimable(folder, "total_"), limit, "cgroup v1")

    def _host(self) -> Iterator[Reading]:
        pairs = _pairs(self._proc / "meminfo", ":")
        if "MemAvailable" in pairs:
            yield Reading(pairs["MemAvailable"] << 10, pairs.get("MemTotal", 0) << 10 or None, "host")
        elif not self._proc.exists():
            available, total = host.memory()
            yield Reading(available, total, "host")

    def _groups(self, controller: str, mount: Path) -> Iterator[Path]:
        """Folders of our control group and of those above it. controller: empty for version 2."""
        for line in _text(self._proc / "self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if (controller in names.split(",")) if controller else (number == "0" and not names):
                break
        else:
            return
        parts = [part for part in path.split("/") if part]
        if ".." in parts:  # we are outside of what this name space shows
            parts = []
        for length in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:length])
            # Inside a container the path is often the host's, and only the mount itself is there.
            if folder.is_dir():
                yield folder


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


def resident(pid: int | None = None) -> int | None:
    """Bytes of a process (default: this one) that are in memory; None if it is gone or that is not told."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return host.memory_of(pid or os.getpid())


def trim() -> bool:
    """Give what this process has freed back to the system, so that its size is what it uses; False where it cannot."""
    if not _TRIM:
        return False
    _TRIM(0)
    return True


def outstanding(pages: Iterable[Page], *, asking: bool = True) -> int:
    """Bytes that these workers' running jobs may yet take: what was reserved for them less what they have taken.

    asking: count what is being decided as well.
    """
    total = 0
    for page in pages:
        reserved = abs(page.reserved) if asking else page.reserved
        if reserved > 0 and page.phase != Phase.LEAVING:
            size = resident(page.pid)
            total += max(reserved - max((size or 0) - page.resident, 0), 0) if size is not None else 0
    return total


class Peak:
    """The most memory that this process takes between `start` and `stop`: a real figure, by the kernel's own account.

    Linux keeps the highest resident size of a process, and forgets it when 5 is written to /proc/self/clear_refs, so
    a big job that ran before does not hide a small one. What it cannot see: memory of child processes. What was
    resident before and is used again by the job is not counted, shared pages that it is the first to touch are.
    """

    def __init__(self) -> None:
        self._before: int | None = None

    def start(self) -> int | None:
        """Measure from here on; returns the size now, None where the kernel does not tell."""
        # Opened anew each time: a handler that closes what is not its own must not make us write into its file.
        self._before = None
        with suppress(OSError):
            fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"5")
            finally:
                os.close(fd)
            self._before = resident()
        return self._before

    def stop(self) -> int | None:
        """Bytes above the size at the start; None where the kernel does not tell (macOS)."""
        if self._before is None:
            return None
        with suppress(OSError), open("/proc/self/status", "rb") as file:
            if found := _PEAK.search(file.read()):
                return max((int(found[1]) << 10) - self._before, 0)
        return None

    def left(self) -> int:
        """Bytes by which the process is larger now than at the start."""
        return max((resident() or 0) - (self._before or 0), 0)


# ── files of the kernel ───────────────────────────────────────────────────────────────────────────


def _reclaimable(folder: Path, prefix: str) -> int:
    """Bytes charged to a group that the kernel takes back before it kills: cold file pages, half of the warm ones."""
    pairs = _pairs(folder / "memory.stat", " ")
    warm = pairs.get(prefix + "active_file", 0) + pairs.get(prefix + "slab_reclaimable", 0)
    return pairs.get(prefix + "inactive_file", 0) + warm // 2


def _pairs(path: Path, sign: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(sign)
        value = rest.split()
        if value and value[0].isdigit():
            pairs[name] = int(value[0])
    return pairs


def _number(path: Path) -> int | None:
    """A file's number; None for a missing file, for `max` and for what version 1 writes instead of that."""
    text = _text(path).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
