"""The sample application: a small shop. Each handler shows one thing."""

from __future__ import annotations

import random
import time
from typing import Literal

from queuety import Context, CpuPool, Permanent, Queuety

app = Queuety()

CRITICAL, DEFAULT, LOW = "demo-critical", "demo-default", "demo-low"


def say(ctx: Context, text: str) -> None:
    job = ctx.job
    again = f", attempt {job.attempt} of {job.max_attempts}" if job.attempt > 1 else ""
    print(f"  {job.queue:<14} {job.handler:<10} job {job.id}{again}: {text}")


@app.job(queue=CRITICAL, priority="high", timeout=10)
def charge(ctx: Context, order: int, cents: int) -> str:
    """A job that matters; one card in twenty does not exist, and no further attempt can help that."""
    time.sleep(0.05)
    if random.random() < 0.05:
        say(ctx, f"order {order}: no such card")
        raise Permanent(f"order {order}: no such card")
    say(ctx, f"order {order} paid, {cents / 100:.2f}")
    return f"receipt {order}"


@app.job(queue=DEFAULT, max_attempts=3, backoff=[1, 2])
def send_mail(ctx: Context, to: str, subject: str, course: Literal["ok", "flaky", "fail"] = "ok") -> None:
    """Three courses: ok; flaky, which the next attempt cures; fail, which uses up its attempts and is buried."""
    if course not in ("ok", "flaky", "fail"):
        raise Permanent(f"there is no course {course!r}: ok, flaky or fail")
    time.sleep(random.uniform(0.1, 0.4))
    if course == "fail" or (course == "flaky" and ctx.job.attempt == 1):
        say(ctx, f"mail to {to}: the server hung up")
        raise ConnectionError("the mail server hung up")
    say(ctx, f"mail to {to}: {subject}")


@app.job(queue=LOW)
def report(ctx: Context, rows: int) -> dict[str, int]:
    """A long one, which tells how far it is; `queuety events ID --follow` shows it."""
    for step in range(1, 6):
        time.sleep(0.3)
        ctx.progress(step, 5, f"{rows * step // 5} rows")
    say(ctx, f"report over {rows} rows is ready")
    return {"rows": rows}


@app.job(queue=LOW, timeout=60)
async def digest(ctx: Context, text: str, rounds: int) -> str:
    """A computing one, on a CPU pool that lives as long as the run: the event loop stays free, and nothing is left."""
    async with CpuPool(processes=1) as pool:
        value: str = await pool.run("queuety.demo.hashing:digest", text, rounds, timeout=30)
    say(ctx, f"{text}: {rounds} rounds of SHA-256, {value[:12]}…")
    return value


@app.schedule("*/30 * * * * *", name="counter", timezone="UTC", payload={"by": "schedule"}, overlap="skip")
@app.job(queue=CRITICAL)
def count(ctx: Context, by: str = "hand") -> dict[str, int]:
    """Incremented every 30 seconds by its schedule, and by whoever enqueues it; both into the same table.

    The increment and the end of the job are one transaction, so it counts each job once whatever dies.
    """
    with ctx.transaction() as conn:
        conn.execute(
            "INSERT INTO demo_counter AS c (by, count) VALUES (%s, 1) "
            "ON CONFLICT (by) DO UPDATE SET count = c.count + 1",
            [by],
        )
        counts = dict(conn.execute("SELECT c.by, c.count FROM demo_counter AS c ORDER BY c.by").fetchall())
    say(ctx, ", ".join(f"{number} by {who}" for who, number in counts.items()))
    return counts


@app.job(queue=DEFAULT)
def thumbnail(picture: int) -> None:
    """A quick one, enqueued in bulk; it makes no noise."""
