"""Stopping: clean, in time, and nothing lost."""

from __future__ import annotations

import signal

from queuety import Queuety
from tests.daemon import daemon, read_ledger, until


def test_a_stop_lets_the_running_job_finish_and_starts_no_other(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    first, second = app.enqueue("sleep", {"seconds": 2}), app.enqueue("sleep", {"seconds": 2})

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: read_ledger(ledger))
        code = pool.stop()

    assert code == 0
    assert (first.state(), first.job().attempts) == ("completed", 1)
    assert (second.state(), second.job().attempts) == ("pending", 0)


def test_idle_processes_leave_within_two_seconds(database, tmp_path):
    with daemon(database, "--workers=4", "--sleep=30", log=tmp_path / "log") as pool:
        pool.ready(4)
        pool.signal(signal.SIGINT)
        code = pool.wait(2.5)

    assert code == 0
    assert "Traceback" not in pool.log()
