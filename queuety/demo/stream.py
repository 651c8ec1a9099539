"""Write jobs for the sample application until the process that started this one is gone."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Literal

from queuety.demo.application import app, charge, count, digest, report, send_mail, thumbnail
from queuety.errors import QueuetyError
from queuety.loading import bind
from queuety.settings import Settings

NAMES = ("ada", "grace", "edsger", "barbara", "donald", "frances", "leslie", "radia")
COURSES: tuple[Literal["ok", "flaky", "fail"], ...] = ("ok", "flaky", "fail")


def prepare() -> None:
    """Make the table that the counter counts in."""
    with app.connection() as conn:
        conn.execute(
            "CREATE TABLE IF NOT EXISTS demo_counter (by text PRIMARY KEY, count bigint NOT NULL DEFAULT 0)"
        )


def write(round_: int) -> None:
    """One round of orders."""
    order = 1000 + round_
    charge.enqueue(order, cents=random.randint(500, 20_000))
    send_mail.using(tags=[f"order-{order}"]).enqueue(
        f"{random.choice(NAMES)}@example.org",
        f"your order {order}",
        course=random.choices(COURSES, (16, 3, 1))[0],
    )
    if round_ % 10 == 0:
        report.enqueue(rows=random.randint(1_000, 50_000))
    if round_ % 20 == 0:
        count.enqueue()  # by hand
    if round_ % 12 == 0:
        digest.enqueue(f"order {order}", rounds=1_000_000)
    if round_ % 15 == 0:
        thumbnail.enqueue_many({"picture": picture} for picture in range(500))
        print(f"  {'500 thumbnails enqueued in bulk':>48}", flush=True)


def main(url: str) -> None:
    bind(app, Settings.load({"database_url": url}))
    prepare()
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
