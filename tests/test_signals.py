"""Signals that a process manager sends to all of a pool at once."""

from __future__ import annotations

import signal

import psutil

from queuety import Queuety
from tests.daemon import daemon, read_ledger, until


def test_what_is_meant_for_the_supervisor_harms_nobody_if_the_whole_pool_gets_it(database, tmp_path):
    """As `systemctl kill` does without --kill-whom=main. Unheeded, TTIN and TTOU freeze a process."""
    app, ledger = Queuety(database), tmp_path / "ledger"

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log") as pool:
        pool.ready(2)
        job = app.enqueue("sleep", {"seconds": 1})
        until(lambda: read_ledger(ledger))
        for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGHUP):
            pool.signal_group(number)
        job.wait(timeout=10)
        app.enqueue("ok").wait(timeout=10)
        frozen = [one for one in pool.workers() if one.status() == psutil.STATUS_STOPPED]
        code = pool.stop()

    assert frozen == []
    assert code == 0
    assert job.job().attempts == 1
    assert " ended (" not in pool.log()
