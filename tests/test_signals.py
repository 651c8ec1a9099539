"""Signals that a process manager sends to all of a pool at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from queuety import Queuety
from tests import ROOT
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


EARLY = """
import importlib, os, signal, sys
from queuety.cli import main

def load(name, real=importlib.import_module):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(name)

main.importlib.import_module = load
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "code"), [(["work"], 0), (["flush", "--json"], 0), (["enqueue", "work"], -signal.SIGTERM)]
)
def test_a_pool_that_is_told_to_stop_before_it_has_read_its_options_leaves_with_0(command, code):
    """As a process manager does that is stopped while it starts. Other commands have not done their work."""
    ran = subprocess.run([sys.executable, "-c", EARLY, *command], cwd=ROOT, timeout=20, capture_output=True)

    assert (ran.returncode, ran.stderr) == (code, b"")
