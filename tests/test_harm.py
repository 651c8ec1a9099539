"""Nothing that a handler does to its process harms another job."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from queuety import Queuety
from tests.checks import sound, starts
from tests.daemon import daemon, until

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_WORKER_MIN_AGE": "0"}


@pytest.mark.parametrize(
    ("handler", "payload", "error"),
    [
        ("fail", {}, "ValueError"),
        ("exit_politely", {}, "SystemExit"),
        ("interrupt", {}, "KeyboardInterrupt"),
        ("raise_odd", {}, "Odd"),
        ("cancel_itself", {}, "JobCancelled"),
        ("leave", {"code": 0}, "WorkerLeft"),
        ("leave", {"code": 70}, "WorkerLeft"),
        ("kill_self", {"number": 9}, "WorkerKilled"),
        ("segfault", {}, "WorkerKilled"),
    ],
)
def test_however_a_run_ends_it_is_a_failed_attempt_of_its_own_job_only(
    pool, shared, ledger, handler, payload, error
):
    app = Queuety(shared)
    bad = app.enqueue(handler, payload, max_attempts=2, backoff=[0])
    good = [app.enqueue("echo", {"value": number}) for number in range(10)]

    ended = bad.wait(10)

    assert (ended.state, ended.attempts) == ("buried", 2)
    assert ended.error is not None
    assert ended.error["type"] == error
    assert [job.result(5) for job in good] == list(range(10))
    assert {job.job().attempts for job in good} == {1}
    assert starts(ledger)[bad.id] == 2


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return tmp_path_factory.mktemp("harm") / "ledger"


@pytest.fixture(scope="module")
def pool(shared, ledger):
    with daemon(
        shared, "--workers=2", app=ROUGH, ledger=ledger, log=ledger.with_name("log"), env=QUICK
    ) as running:
        running.ready(2)
        yield running
        assert running.stop() == 0


def test_a_closed_standard_output_is_open_again_for_the_next_job(database, tmp_path):
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=tmp_path / "ledger", log=tmp_path / "log", env=QUICK) as pool:
        app.enqueue("close_stdout").wait(10)
        assert app.enqueue("say", {"text": "still heard"}).wait(10).attempts == 1
        until(lambda: "still heard" in pool.log())
        assert pool.stop() == 0


@pytest.mark.parametrize("first", [0, 3])
def test_a_handler_that_closes_every_descriptor_harms_no_other_job(database, tmp_path, first):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        for _ in range(3):
            before = [app.enqueue("value", {"result": "x"}) for _ in range(10)]
            bad = app.enqueue("close_descriptors", {"first": first})
            after = [app.enqueue("say", {"text": "y" * 100}) for _ in range(10)]
            for job in [*before, bad, *after]:
                assert (job.wait(15).state, job.job().attempts) == ("completed", 1)
        assert pool.stop() == 0

    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)


def test_what_a_coroutine_leaves_running_is_not_in_the_next_jobs_loop(database, tmp_path):
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=tmp_path / "ledger", log=tmp_path / "log", env=QUICK) as pool:
        app.enqueue("leave_async").wait(10)
        assert app.enqueue("nap").result(10) == 1
        assert pool.stop(5) == 0


def test_threads_that_handlers_leave_behind_do_not_keep_a_worker_from_being_replaced(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    jobs = [app.enqueue(handler) for handler in ("leave_thread", "leave_async", "ok", "leave_async", "ok")]

    with daemon(
        database, "--workers=2", "--max-jobs=1", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK
    ) as pool:
        for job in jobs:
            assert job.wait(15).attempts == 1
        assert len(until(lambda: len(pool.workers()) == 2 and pool.workers(), 10)) == 2
        assert pool.stop(5) == 0

    sound(database, ledger, pool)


def test_everything_at_once_harms_no_other_job(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    villains = [
        *("fail", "exit_politely", "raise_odd", "leave", "kill_self", "segfault", "over_and_swallow_all"),
        *("close_stdout", "close_descriptors", "ignore_signals", "leave_thread", "leave_async"),
        *("fork_and_return", "cut_backends"),
    ]
    good = []
    for villain in villains:
        app.enqueue(villain, {}, max_attempts=1)
        good += [app.enqueue("echo", {"value": villain}), app.enqueue("say", {"text": villain})]

    with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        for job in good:
            assert (job.wait(40).state, job.job().attempts) == ("completed", 1)
        assert [job.result() for job in good[::2]] == villains
        until(lambda: not app.jobs(state="pending") and not app.jobs(state="processing"))
        assert pool.stop(5) == 0

    assert all(starts(ledger)[job.id] == 1 for job in good)
    sound(database, ledger, pool, tracebacks=True)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_runs_out_of_address_space_fails_alone(database, tmp_path):
    prlimit = shutil.which("prlimit")
    if not prlimit:
        pytest.skip("needs prlimit")
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(
        database,
        "--workers=2",
        app=ROUGH,
        ledger=ledger,
        log=tmp_path / "log",
        env=QUICK,
        prefix=[prlimit, f"--as={1 << 30}"],
    ) as pool:
        pool.ready(2)
        bad = app.enqueue("eat_memory", {}, max_attempts=1)
        good = [app.enqueue("sleep", {"seconds": 0.1}) for _ in range(10)]
        ended = bad.wait(30)
        for job in good:
            assert job.wait(10).attempts == 1
        assert app.enqueue("ok").wait(10).state == "completed"
        assert pool.stop() == 0

    assert ended.state == "buried"
    assert ended.error is not None
    assert ended.error["type"] in ("MemoryError", "WorkerKilled", "WorkerLeft")


@contextmanager
def bounded_memory(limit):
    """A control group whose memory is bounded; its folder. Skips where we may not make one."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        bound = {"memory.limit_in_bytes": limit, "memory.max": limit}
        folder = root / f"queuety-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            named = [name for name in bound if (folder / name).exists()]
            if not named:
                continue
            (folder / named[0]).write_text(str(limit))
            yield folder
            return
        except PermissionError:
            continue
        finally:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
    pytest.skip("needs the right to make a control group with a memory limit")


def test_a_handler_that_the_kernel_ends_for_its_memory_fails_alone(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with bounded_memory(400 << 20) as group:
        join = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        if subprocess.run([*join, "true"], capture_output=True).returncode:
            pytest.skip("may not join a control group")
        with daemon(
            database,
            "--workers=2",
            app=ROUGH,
            ledger=ledger,
            log=tmp_path / "log",
            env=QUICK,
            prefix=join,
        ) as pool:
            pool.ready(2)
            bad = app.enqueue("eat_memory", {}, max_attempts=1)
            good = [app.enqueue("sleep", {"seconds": 0.1}) for _ in range(10)]
            ended = bad.wait(30)
            for job in good:
                assert job.wait(10).state == "completed"
            assert app.enqueue("ok").wait(10).state == "completed"
            assert pool.stop() == 0

    assert ended.state == "buried"
    assert ended.error is not None
    assert "signal 9" in ended.error["message"]
    assert "memory killer" in ended.error["message"]
    assert starts(ledger)[bad.id] == 1
