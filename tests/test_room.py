"""Reservations: workers that ask at the same moment never count on the same memory."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from queuety.policy.admission import MB
from queuety.policy.profile import Profile
from queuety.process import memory
from queuety.process.ledger import Ledger, Phase
from queuety.process.memory import ROOT
from queuety.process.profiler import Profiler
from queuety.process.room import Room
from queuety.settings import Settings


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container with 400 MB, of which 100 are in use; 128 are kept free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{400 * MB}\n")
    (group / "memory.current").write_text(f"{100 * MB}\n")
    monkeypatch.setenv(ROOT, str(tmp_path))
    return group


def room(ledger: Ledger, index: int, peak_mb: int) -> Room:
    """The room of the worker on that page; its handler `take` has taken so much."""
    page = ledger.pages[index]
    page.pid = os.getpid()
    page.phase = Phase.RUNNING
    settings = Settings()
    profiler = Profiler(settings, page)
    profiler.note("take", 0.1)
    profiler._tallies["take"].took(peak_mb * MB, peak_mb * MB)
    profiler.peaks["take"] = peak_mb * MB
    return Room(settings, profiler, page, 0.0, 0)


def test_what_is_reserved_for_one_is_not_there_for_another(box):
    ledger = Ledger(3)
    first, second, third = (room(ledger, index, 80) for index in range(3))

    assert first.declines("take", fresh=True) is None
    assert second.declines("take", fresh=True) is None
    refused = third.declines("take", fresh=True)

    assert refused is not None
    assert "it takes 80 MB, and 140 MB are to be had here with 128 MB kept free" in refused.reason

    first.leave()
    assert third.declines("take", fresh=True) is None


def test_what_a_job_has_taken_of_its_reservation_is_not_counted_twice(box):
    ledger = Ledger(1)
    mine = room(ledger, 0, 100)
    assert mine.declines("take", fresh=True) is None
    assert memory.outstanding(ledger) == pytest.approx(100 * MB, abs=2 * MB)

    held = bytearray(b"x") * (40 * MB)

    assert memory.outstanding(ledger) == pytest.approx(60 * MB, abs=4 * MB)
    del held


def test_a_refused_worker_reserves_nothing(box):
    ledger = Ledger(1)

    assert room(ledger, 0, 500).declines("take", fresh=True) is not None

    assert ledger.pages[0].reserved == 0
    assert memory.outstanding(ledger) == 0


def test_the_reservation_of_a_dead_worker_holds_up_nobody(box):
    ledger = Ledger(2)
    page = ledger.pages[0]
    page.phase, page.pid, page.reserved = Phase.RUNNING, 2**22 - 1, 300 * MB

    assert room(ledger, 1, 80).declines("take", fresh=True) is None


def test_a_small_handler_asks_for_no_reading(box, monkeypatch):
    mine = room(Ledger(1), 0, 0)
    monkeypatch.setattr(memory.System, "read", lambda _: pytest.fail("the system was read"))

    assert mine.declines("take", fresh=True) is None
    assert mine.declines("unknown", fresh=True) is None


def test_where_there_is_plenty_nobody_waits_for_what_is_freed(box):
    (box / "memory.max").write_text(f"{64 << 40}\n")
    (box.parents[2] / "proc/meminfo").write_text("MemAvailable: 1000000000 kB\n")
    ledger = Ledger(2)
    mine = room(ledger, 0, 80)

    assert mine.declines("take", fresh=True) is None

    assert ledger.pages[0].reserved == 80 * MB  # for others it may be tight by then
    assert not mine.leave()
    assert ledger.pages[0].reserved == 0


def test_processes_that_ask_at_the_same_moment_never_get_more_than_there_is(box):
    """300 MB are free, 128 of them kept: room for two of 80 MB, whoever asks when."""
    ledger = Ledger(6)
    taken = mmap.mmap(-1, 6)
    children = []
    for index in range(6):
        if pid := os.fork():
            children.append(pid)
            continue
        code = 99
        try:
            mine = room(ledger, index, 80)
            most = got = 0
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                if mine.declines("take", fresh=True) is None:
                    taken[index] = 1
                    got += 1
                    most = max(most, sum(taken[:]))
                    time.sleep(0.0005)
                    most = max(most, sum(taken[:]))
                    taken[index] = 0
                    mine.leave()
            code = most if got else 0
        finally:
            os._exit(code)

    seen = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert max(seen) == 2


def test_a_profile_whose_peak_is_unknown_holds_up_nothing(box):
    mine = room(Ledger(1), 0, 500)
    mine._profiler.profile = lambda _: Profile(1, 0.1, 0.1, None)  # type: ignore[method-assign,assignment]

    assert mine.declines("take", fresh=True) is None
