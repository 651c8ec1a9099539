"""What the supervisor sees of an adaptive pool, and what it makes of the policy's answer."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from queuety.policy.scale import Limits
from queuety.process import memory
from queuety.process.ledger import Counter, Ledger, Page, Phase
from queuety.process.size import Size, spare
from queuety.process.supervisor import Child
from queuety.settings import Settings


@pytest.fixture
def ledger():
    return Ledger(8)


def worker(
    ledger: Ledger, phase: Phase, *, jobs: int = 0, ready: bool = True, claiming: bool = False
) -> Page:
    page = ledger.free()
    assert page
    now = time.monotonic()
    page.phase, page.pid, page.born = phase, os.getpid(), now
    page.ready = now if ready else 0.0
    page.claiming = int(claiming)
    if jobs:
        page.hold(1, list(range(jobs)))
        page.begin(0, now, 0.0)
    return page


def size(ledger: Ledger, least: int = 1, most: int = 6, *, target_s: float = 0.0, **settings: object) -> Size:
    return Size(Limits(least, most, target_wait_s=target_s), Settings(**settings), ledger)  # type: ignore[arg-type]


def nothing() -> list[int]:
    return [0] * len(Counter)


def children(*pages: Page) -> list[Child]:
    return [Child(index, page) for index, page in enumerate(pages)]


# ── what is wanted ────────────────────────────────────────────────────────────────────────────────


def test_busy_workers_are_counted_by_what_they_hold(ledger):
    worker(ledger, Phase.RUNNING, jobs=1)
    worker(ledger, Phase.LOOKING, jobs=3)  # about to settle
    worker(ledger, Phase.SLEEPING)

    assert size(ledger).decide(3, 2, nothing(), 0) == 4


def test_a_change_is_one_line_with_its_reason(ledger, caplog):
    caplog.set_level(logging.INFO)
    worker(ledger, Phase.RUNNING, jobs=1)
    pool = size(ledger)

    for wanted in (1, 6, 6):
        pool.decide(wanted, 240, nothing(), 0)

    assert caplog.messages == ["1 -> 6 workers: 240 due, 1 busy"]


def test_times_come_from_the_settings_that_the_application_may_have_given(ledger):
    pool = size(ledger, worker_pool_scale_interval=7.0, worker_pool_idle_grace=3.0)

    assert (pool.limits.interval_s, pool.limits.grace_s) == (7.0, 3.0)


def test_workers_that_have_been_asked_to_leave_take_their_places_along(ledger):
    worker(ledger, Phase.RUNNING, jobs=1).told = 1

    assert size(ledger).decide(1, 100, nothing(), 1) == 5


def test_memory_that_holds_the_pool_back_is_told_once(ledger, caplog, tmp_path, monkeypatch):
    worker(ledger, Phase.RUNNING, jobs=1)
    free(tmp_path, 0)
    monkeypatch.setenv("QUEUETY_TEST_SYSTEM_ROOT", str(tmp_path))
    pool = size(ledger)

    assert [pool.decide(1, 100, nothing(), 0) for _ in range(5)] == [1] * 5
    free(tmp_path, 4000)
    assert pool.decide(1, 100, nothing(), 0) == 6

    assert sum("is not free" in message for message in caplog.messages) == 1


def test_workers_that_start_are_counted_with_the_memory_that_they_will_take(ledger, tmp_path, monkeypatch):
    for _ in range(3):
        worker(ledger, Phase.BOOTING, ready=False)
    free(tmp_path, 128 + 5 * 32)
    monkeypatch.setenv("QUEUETY_TEST_SYSTEM_ROOT", str(tmp_path))

    assert size(ledger).decide(3, 100, nothing(), 0) == 5


def test_memory_that_running_jobs_are_yet_to_take_is_not_free(ledger, tmp_path, monkeypatch):
    page = worker(ledger, Phase.RUNNING, jobs=1, ready=False)
    page.resident, page.reserved = memory.resident() or 0, 64 << 20
    free(tmp_path, 128 + 5 * 32)
    monkeypatch.setenv("QUEUETY_TEST_SYSTEM_ROOT", str(tmp_path))

    assert size(ledger).decide(1, 100, nothing(), 0) < 1 + 4


def test_whoever_does_not_look_at_memory_is_not_held_back_by_it(ledger, tmp_path, monkeypatch):
    free(tmp_path, 0)
    monkeypatch.setenv("QUEUETY_TEST_SYSTEM_ROOT", str(tmp_path))

    assert size(ledger, resource_system_memory_awareness=False).decide(1, 100, nothing(), 0) == 6


def free(root: Path, megabytes: int) -> None:
    file = root / "proc" / "meminfo"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"MemTotal: 8000000 kB\nMemAvailable: {megabytes << 10} kB\n")


def test_jobs_that_ended_teach_how_long_jobs_take(ledger):
    page = worker(ledger, Phase.SLEEPING)
    pool = size(ledger, most=100, target_s=20.0)
    pool.decide(1, 0, nothing(), 0)
    page.worked = 5.0
    page.count_one(Counter.COMPLETED, 10)

    assert pool.decide(1, 380, page.counts(), 0) == 10  # 190 s of work in the 19 s that are left


# ── who leaves ────────────────────────────────────────────────────────────────────────────────────


def test_sleepers_leave_first_and_the_busy_never(ledger):
    busy = worker(ledger, Phase.RUNNING, jobs=1)
    looking = worker(ledger, Phase.LOOKING)
    asleep = worker(ledger, Phase.SLEEPING)
    claiming = worker(ledger, Phase.LOOKING, claiming=True)
    starting = worker(ledger, Phase.BOOTING, ready=False)

    going = spare(children(busy, looking, asleep, claiming, starting), busy_too=False)

    assert [one.page for one in going] == [asleep, looking]


def test_a_pool_of_a_fixed_size_lets_the_busy_go_last(ledger):
    busy = worker(ledger, Phase.RUNNING, jobs=1)
    asleep = worker(ledger, Phase.SLEEPING)

    assert [one.page for one in spare(children(busy, asleep), busy_too=True)] == [asleep, busy]


def test_who_leaves_already_is_not_asked_again(ledger):
    told, other = children(worker(ledger, Phase.SLEEPING), worker(ledger, Phase.SLEEPING))
    told.told = True

    assert spare([told, other], busy_too=True) == [other]
