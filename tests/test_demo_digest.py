"""The sample application's job that computes on a CPU pool."""

from __future__ import annotations

import threading

import psutil

from queuety.demo.application import app, digest
from queuety.loading import bind
from queuety.settings import Settings


def test_the_sample_application_computes_on_a_pool_and_leaves_nothing(database):
    bind(app, Settings.load({"database_url": database}))
    handle = digest.enqueue("tea", rounds=1000)
    try:
        app.worker(queues="demo-low").flush()

        assert handle.state() == "completed"
        assert len(handle.result(timeout=5)) == 64
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("queuety-cpu")]
        for child in psutil.Process().children(recursive=True):
            assert "queuety.cpu" not in " ".join(child.cmdline())
    finally:
        app.close()
