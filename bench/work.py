"""`python -m bench.work WORKERS`: a pool as `queuety work` runs it, with default settings, without the command line.

Until a worker has been forked, nothing of the database or of the application is imported.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING

from queuety.process.plan import Plan
from queuety.process.supervisor import Supervisor
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.process.plan import Registry


def load() -> Registry:
    from bench.application import app

    return app.handlers


def main() -> int:
    logging.basicConfig(level=logging.ERROR)  # killed workers are part of a figure
    plan = Plan(
        url=os.environ["QUEUETY_DATABASE_URL"],
        queues=("default",),
        load=load,
        settings=Settings.load({}),
        name=socket.gethostname(),
        workers=int(sys.argv[1]),
    )
    return Supervisor(plan).run().code


if __name__ == "__main__":
    sys.exit(main())
