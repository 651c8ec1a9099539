"""What a forked child of the pool does. Database and user code is imported here, after the fork."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import signal
import time
from collections.abc import Callable

from queuety.errors import DatabaseUnreachable, QueuetyError
from queuety.process import host
from queuety.process.ledger import Ledger, Page
from queuety.process.output import protect
from queuety.process.plan import Mode, Plan
from queuety.process.titles import title
from queuety.process.wire import Wire

log = logging.getLogger("queuety.worker")


def worker(plan: Plan, page: Page, poke_fd: int, done: int) -> int:
    """Be a worker; returns the exit code. done: jobs that the pool's workers have ended so far."""
    os.setpgid(0, 0)  # so that it can be ended together with what its handlers start
    page.pid = os.getpid()
    host.signal_when_orphaned(signal.SIGTERM)
    title(f"worker {plan.name} starts")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    protect()
    try:
        from queuety.process import builtin
        from queuety.process.worker import Worker

        if plan.max_jobs:
            plan = dataclasses.replace(plan, max_jobs=plan.max_jobs - done)
        app = plan.load()
        declared = app.declared if plan.mode is Mode.WORK else None
        own = Worker(plan, builtin.registry(app), page, poke_fd=poke_fd)
        _start(lambda: own.start(declared), plan)
        own.loop()
    except QueuetyError as error:
        page.text = str(error)
        return error.exit_code
    own.stop()
    page.text = own.leaving
    return 0


def keeper(plan: Plan, ledger: Ledger, wire: Wire, poke_fd: int, before: int) -> int:
    """Be the keeper; returns the exit code. before: id of the one that died before."""
    title(f"keeper {plan.name} starts")
    protect()
    from queuety.process.keeper import Keeper

    Keeper(plan, ledger, wire, poke_fd, before).run()
    return 0


def _start(start: Callable[[], None], plan: Plan) -> None:
    """Start, waiting with growing pauses for a database that is away or has no connection to spare."""
    parent, pause = os.getppid(), 0.2
    while True:
        try:
            start()
            return
        except DatabaseUnreachable as error:
            log.warning("a worker waits for the database: %s", error.message)
            time.sleep(pause * (0.5 + random.random()))
            pause = min(2 * pause, 10.0)
            if os.getppid() != parent:
                raise
