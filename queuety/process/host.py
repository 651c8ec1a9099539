"""Readings of this host: memory of a process, processes alive, kills by the kernel's memory killer."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

_PR_SET_PDEATHSIG = 1

_SELF: dict[int, psutil.Process] = {}


def own_memory() -> int:
    """Resident memory of this process, in bytes."""
    pid = os.getpid()
    process = _SELF.get(pid)
    if process is None:
        _SELF.clear()  # inherited over a fork
        process = _SELF[pid] = psutil.Process(pid)
    return int(process.memory_info().rss)


def memory() -> tuple[int, int]:
    """(bytes that may still be taken, bytes in all) of this host."""
    found = psutil.virtual_memory()
    return int(found.available), int(found.total)


def memory_of(pid: int) -> int | None:
    """Resident memory of a process, in bytes; None if it is gone or not ours to see."""
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


def memory_kills() -> int:
    """How many processes the kernel's memory killer has ended: in our control group, else on this host.

    0 where the kernel does not tell.
    """
    for path, word in ((_cgroup_events(), "oom_kill"), (Path("/proc/vmstat"), "oom_kill")):
        if path is None:
            continue
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == word:
                    return int(value)
    return 0


def _cgroup_events() -> Path | None:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"
                if path.exists():
                    return path
    path = Path("/sys/fs/cgroup/memory.events")
    return path if path.exists() else None


def kill_group(pid: int) -> None:
    """End a worker and everything it started that is still in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def end_own_group() -> NoReturn:
    """End this process and everything it started that is still in its process group."""
    if os.getpgrp() == os.getpid():  # a handler may have joined another one: that is not ours to end
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def signal_when_orphaned(number: signal.Signals) -> None:
    """Ask the kernel to send this process `number` when its parent dies; nothing happens where it cannot."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def alive(pid: int) -> bool:
    """True if a process with this id runs; one that has ended and waits for its new parent does not."""
    with suppress(psutil.AccessDenied):
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
    return True
