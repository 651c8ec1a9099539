"""What once broke in the hands of somebody who tried to break it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import psutil

from queuety import Queuety, State
from queuety.model import Cancel
from queuety.process.ledger import Ledger
from queuety.store import claims
from queuety.store.batch import Batch
from queuety.store.claims import Want
from queuety.store.lanes import Lanes
from tests import ROOT
from tests.daemon import daemon, read_ledger, remaining, until

APP = "tests.apps.basic:app"


def test_a_new_claim_knows_nothing_of_an_old_cancel_request():
    page = Ledger(1).pages[0]
    page.hold(1, [7])
    page.cancel = 7

    page.hold(2, [7])

    assert page.cancel == 0


def test_a_cancellation_that_nobody_asked_for_gives_the_job_back(database, conn):
    app = Queuety(database)
    job = app.enqueue("ok")
    [claimed] = claims.turn(conn, None, Want(Lanes(("default",)), 1, "w#1", 60.0)).jobs
    batch = Batch(claimed.lease)
    batch.add(claimed.id, Cancel())

    claims.turn(conn, batch, None)

    assert (job.state(), job.job().attempts) == (State.PENDING, 0)


def test_an_orphan_without_a_keeper_ends_its_run_before_others_may_have_the_job(database, tmp_path):
    ledger = tmp_path / "ledger"
    Queuety(database).enqueue("sleep", {"seconds": 60})
    env = {"QUEUETY_STALE_TIMEOUT": "4"}

    with daemon(database, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        [start] = until(lambda: read_ledger(ledger))
        keeper = pool.keeper()
        for pid in (pool.pid, keeper.pid):
            os.kill(pid, signal.SIGKILL)
        worker = psutil.Process(start.pid)
        alive = remaining([worker], 3.5)

    assert alive == []


def test_a_time_limit_holds_although_the_supervisor_is_gone(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("swallow", {"seconds": 60}, max_attempts=1)

    with daemon(database, app="tests.apps.swallow:app", ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: read_ledger(ledger))
        os.kill(pool.pid, signal.SIGKILL)
        ended = job.wait(15)

    assert ended.state is State.BURIED
    assert ended.error is not None
    assert ended.error["type"] == "TimeLimitExceeded"


def test_a_time_in_the_first_year_means_now(database):
    job = Queuety(database).enqueue("ok", at=datetime(1, 1, 1, tzinfo=UTC))

    assert job.state() is State.PENDING


def test_output_that_cannot_be_written_is_an_error_of_the_command(database):
    command = [sys.executable, "-m", "queuety.cli.main", "--database-url", database, "--app", APP]
    for arguments in (["status"], ["flush", "--json"], ["enqueue", "ok"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*command, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
            )

        assert done.returncode == 1, (arguments, done.stderr)
        assert "the output cannot be written: No space left on device" in done.stderr
