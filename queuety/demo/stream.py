"""Write jobs for the sample application until the process that started this one is gone."""

from __future__ import annotations

import os
import random
import sys
import time

from queuety.demo.application import app, charge, digest, report, send_mail, thumbnail
from queuety.errors import QueuetyError
from queuety.loading import bind
from queuety.settings import Settings

NAMES = ("ada", "grace", "edsger", "barbara", "donald", "frances", "leslie", "radia")


def write(round_: int) -> None:
    """One round of orders."""
    order = 1000 + round_
    charge.enqueue(order, cents=random.randint(500, 20_000))
    send_mail.using(tags=[f"order-{order}"]).enqueue(
        f"{random.choice(NAMES)}@example.org", f"your order {order}"
    )
    if round_ % 10 == 0:
        report.enqueue(rows=random.randint(1_000, 50_000))
    if round_ % 12 == 0:
        digest.enqueue(f"order {order}", rounds=1_000_000)
    if round_ % 15 == 0:
        thumbnail.enqueue_many({"picture": picture} for picture in range(500))
        print(f"  {'500 thumbnails enqueued in bulk':>48}", flush=True)


def main(url: str) -> None:
    bind(app, Settings.load({"database_url": url}))
    parent, round_ = os.getppid(), 0
    while os.getppid() == parent:
        round_ += 1
        try:
            write(round_)
        except QueuetyError as error:
            print(f"  the stream waits: {error}", file=sys.stderr)
        time.sleep(random.uniform(0.3, 0.9))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(0)
