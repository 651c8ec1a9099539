"""What handlers leave behind is their own job's affair: the next one finds a clean place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queuety import Queuety
from tests.daemon import Daemon, daemon, read_ledger, until

APP = "tests.apps.data:app"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mess")


@pytest.fixture(scope="module")
def pool(shared: str, folder: Path) -> Iterator[Daemon]:
    """A single worker, so that the next job meets what the last one left."""
    with daemon(shared, app=APP, ledger=folder / "ledger", log=folder / "log") as running:
        running.ready(1)
        yield running
        assert running.stop() == 0


@pytest.fixture
def app(shared: str, pool: Daemon) -> Iterator[Queuety]:
    queue = Queuety(shared)
    yield queue
    queue.close()


def session(app: Queuety) -> dict[str, object]:
    found: dict[str, object] = app.enqueue("session").result(10)
    return found


def test_a_broken_transaction_is_not_the_next_jobs(app):
    before = session(app)

    assert app.enqueue("broken_transaction").result(10) == "done"

    assert session(app) == before


def test_a_lock_a_search_path_and_a_role_do_not_reach_the_next_job(app):
    before = session(app)

    assert app.enqueue("changed_session").result(10) == "done"

    assert session(app) == before
    assert before["locks"] == 0


def test_a_handler_may_end_its_workers_own_sessions_and_fail(app, pool):
    [worker] = pool.workers()
    job = app.enqueue("end_own_backends", max_attempts=2, backoff=[0.1])

    ended = job.wait(20)

    assert (ended.state, ended.attempts) == ("buried", 2)
    assert "after the end of the sessions" in ended.error["message"]
    assert [one.pid for one in pool.workers()] == [worker.pid]


def test_a_handler_may_start_processes_of_its_own_and_leaves_none(app):
    squares, said, pids = app.enqueue("processes").result(20)

    assert (squares, said) == ([0, 1, 4, 9], "hello")
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="the processes' end")


def test_a_process_that_outlives_its_job_ends_with_its_worker(database, tmp_path):
    with daemon(database, app=APP, log=tmp_path / "log") as pool:
        pid = Queuety(database).enqueue("leave_child").result(10)
        alive = psutil.pid_exists(pid)
        assert pool.stop() == 0

    assert alive
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_thread_that_outlives_its_job_does_not_keep_the_pool_from_leaving(database, tmp_path):
    with daemon(database, app=APP, log=tmp_path / "log") as pool:
        Queuety(database).enqueue("leave_thread").wait(10)
        code = pool.stop(5)

    assert code == 0


def test_a_closed_output_is_no_harm_to_the_next_job(app, pool):
    assert app.enqueue("close_output").wait(10).state == "completed"

    assert app.enqueue("say", {"text": "into nothing"}).wait(10).state == "completed"
    assert app.enqueue("fail", {"message": "told nevertheless"}, max_attempts=1).wait(10).state == "buried"
    until(lambda: "told nevertheless" in pool.log())


def test_what_is_changed_in_the_whole_process_does_not_lead_the_worker_astray(app):
    assert app.enqueue("change_process").wait(10).state == "completed"

    assert app.enqueue("echo", {"value": "still here"}).result(10) == "still here"


# ── who reads the output ──────────────────────────────────────────────────────────────────────────


def test_a_reader_that_goes_away_harms_no_job_and_nothing_spins(database, tmp_path):
    app = Queuety(database)
    jobs = [app.enqueue("say", {"text": "x" * 1000, "times": 20}) for _ in range(50)]
    jobs += [app.enqueue("fail", max_attempts=1) for _ in range(5)]
    pipe = ["bash", "-c", '"$@" | head -n 1', "bash"]

    with daemon(database, app=APP, log=tmp_path / "log", prefix=pipe) as shell:
        ended = [job.wait(20).state for job in jobs]
        mine = [
            one
            for one in psutil.Process(shell.pid).children(recursive=True)
            if "queuety: " in one.cmdline()[0]
        ]
        before = sum(sum(one.cpu_times()[:2]) for one in mine)
        time.sleep(2.0)
        spent = sum(sum(one.cpu_times()[:2]) for one in mine) - before
        mine[0].send_signal(signal.SIGTERM)
        shell.wait()

    assert ended == ["completed"] * 50 + ["buried"] * 5
    assert len(mine) == 3
    assert spent < 0.2


def test_a_full_disk_under_the_log_harms_no_job(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    jobs = [app.enqueue("say", {"text": "x" * 1000, "times": 20}) for _ in range(20)]
    jobs += [app.enqueue("fail", max_attempts=1)]

    with daemon(database, app=APP, ledger=ledger, log=Path("/dev/full")) as pool:
        ended = [job.wait(20).state for job in jobs]
        code = pool.stop()

    assert ended == ["completed"] * 20 + ["buried"]
    assert code == 0
    assert len([one for one in read_ledger(ledger) if one.what == "start"]) == 21


def test_a_pool_without_any_standard_files_works(database, tmp_path):
    job = Queuety(database).enqueue("say", {"text": "to nobody"})

    with daemon(
        database, app=APP, log=tmp_path / "log", prefix=["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"]
    ) as pool:
        assert job.wait(20).state == "completed"
        os.kill(pool.pid, signal.SIGTERM)
        assert pool.wait() == 0
