"""The small application of `basic`, with handlers that tell what reached them, or that leave a mess behind."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg

from queuety import Context, Retry
from tests.apps.basic import app, note, noted

__all__ = ["app"]

log = logging.getLogger("application")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float


# ── what arrives ──────────────────────────────────────────────────────────────────────────────────


@app.job
def typed(
    ctx: Context,
    when: datetime,
    day: date,
    span: timedelta,
    amount: Decimal,
    key: UUID,
    colour: Colour,
    point: Point,
) -> dict[str, str]:
    """Tell the types and values that arrived."""
    with noted(ctx):
        got = {"when": when, "day": day, "span": span, "amount": amount, "key": key, "colour": colour}
        return {name: repr(value) for name, value in {**got, "point": point}.items()}


@app.job
def two(ctx: Context, first: int, second: int) -> int:
    with noted(ctx):
        return first + second


@app.job
def talk(ctx: Context, text: str) -> str:
    """Log, print and return a text."""
    with noted(ctx):
        log.warning("said %s", text)
        print(text)
        sys.stderr.write(text + "\n")
        return text


# ── results that cannot be kept ───────────────────────────────────────────────────────────────────


@app.job
def unkept(ctx: Context, kind: str) -> Any:
    """Return what no JSON can hold."""
    with noted(ctx):
        if kind == "object":
            return object()
        if kind == "generator":
            return (number for number in range(3))
        if kind == "file":
            return open(os.devnull)
        if kind == "large":
            return "x" * 200_000_000
        if kind == "nan":
            return {"value": float("nan")}
        if kind == "nul":
            return "a\0b"
        if kind == "surrogate":
            return "\ud800"
        if kind == "deep":
            deep: list[Any] = []
            for _ in range(100_000):
                deep = [deep]
            return deep
        itself: dict[str, Any] = {}
        itself["itself"] = itself
        return itself


@app.job(result_limit=200_000_000)
def large(ctx: Context, size: int) -> str:
    with noted(ctx):
        return "x" * size


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@app.job
def huge_error(ctx: Context, size: int) -> None:
    note(ctx, "start")
    raise ValueError("x" * size)


@app.job
def chained_error(ctx: Context, links: int) -> None:
    note(ctx, "start")
    error: Exception = ValueError("the first")
    for number in range(links):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    raise error


@app.job
def odd_error(ctx: Context) -> None:
    """Raise an error whose own code fails and whose text no database takes."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("a\0b\ud800")

        __repr__ = __str__

    note(ctx, "start")
    raise Odd("a\0b\ud800")


@app.job
def hostile_text(ctx: Context) -> None:
    note(ctx, "start")
    raise ValueError("NUL \0 surrogate \ud800 percent %s %(x)s {brace} quote ' \\u0000")


@app.job
def exit_with(ctx: Context, code: Any = 0) -> None:
    note(ctx, "start")
    sys.exit(code)


@app.job
def quit_now(ctx: Context) -> None:
    note(ctx, "start")
    quit()


@app.job
def always_retry(ctx: Context) -> None:
    note(ctx, "start")
    raise Retry(f"reason {ctx.job.attempt}", after=0)


# ── retry policies ────────────────────────────────────────────────────────────────────────────────


@app.job(retry="transient")
def transient_only(ctx: Context, kind: str) -> None:
    note(ctx, "start")
    raise {"timeout": TimeoutError, "connection": ConnectionResetError, "bug": TypeError}[kind]("on purpose")


def _policy(error: BaseException) -> str:
    return "transient" if "again" in str(error) else "permanent"


@app.job(retry=_policy)
def by_policy(ctx: Context, text: str) -> None:
    note(ctx, "start")
    raise ValueError(text)


@app.job(backoff=[0.3, 0.6])
def steps(ctx: Context) -> None:
    note(ctx, "start")
    raise ValueError("on purpose")


# ── mess ──────────────────────────────────────────────────────────────────────────────────────────


@app.job
def broken_transaction(ctx: Context) -> str:
    """Fail a statement in an open transaction of the application's connection, swallow it, and return."""
    with noted(ctx), app.connection() as conn:
        conn.execute("BEGIN")
        try:
            conn.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass
        return "done"


@app.job
def changed_session(ctx: Context) -> str:
    """Leave a lock, a search path, a role and a changed connection behind."""
    with noted(ctx), app.connection() as conn:
        conn.execute("SELECT pg_advisory_lock(4711)")
        conn.execute("SET search_path = nowhere")
        conn.execute("SET statement_timeout = '1ms'")
        conn.execute("SET ROLE pg_monitor")
        conn.autocommit = False
        return "done"


@app.job
def session(ctx: Context) -> dict[str, Any]:
    """Tell what kind of session the application's connection is."""
    with noted(ctx), app.connection() as conn:
        row = conn.execute(
            """
            SELECT
                current_user::text, current_setting('search_path'), current_setting('statement_timeout'),
                (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)
            """
        ).fetchone()
        assert row is not None
        return dict(zip(("role", "path", "timeout", "locks"), row, strict=True)) | {"auto": conn.autocommit}


@app.job
def end_own_backends(ctx: Context) -> None:
    """End every session of this worker, then fail."""
    note(ctx, "start")
    with psycopg.connect(app.url, autocommit=True, application_name="assassin") as conn:
        conn.execute(
            """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name LIKE 'queuety worker%' AND datname = current_database()
            """
        )
    raise ValueError("after the end of the sessions")


def _square(number: int) -> int:
    return number * number


@app.job
def processes(ctx: Context) -> list[Any]:
    """Use a pool of processes and a subprocess; tell their results and process ids."""
    with noted(ctx):
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            squares = list(pool.map(_square, range(4)))
            pids = list(pool.map(_own_pid, range(4)))
        said = subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True).stdout
        return [squares, said.strip(), sorted(set(pids))]


def _own_pid(_: int) -> int:
    return os.getpid()


@app.job
def leave_child(ctx: Context) -> int:
    """Start a process that outlives the job."""
    with noted(ctx):
        return subprocess.Popen(["sleep", "300"]).pid


@app.job
def leave_thread(ctx: Context) -> None:
    """Leave a thread behind that is no daemon."""
    with noted(ctx):
        threading.Thread(target=time.sleep, args=(300,)).start()


@app.job
def segfault(ctx: Context) -> None:
    note(ctx, "start")
    ctypes.string_at(0)


@app.job
def close_output(ctx: Context) -> None:
    """Close what everybody prints to."""
    with noted(ctx):
        sys.stdout.close()
        os.close(1)


@app.job
def change_process(ctx: Context) -> None:
    """Change what belongs to the whole process."""
    with noted(ctx):
        os.chdir("/")
        os.environ["TZ"] = "Asia/Seoul"
        os.environ["QUEUETY_DATABASE_URL"] = "postgresql://nowhere/nothing"
        time.tzset()
        logging.disable(logging.CRITICAL)
        logging.disable(logging.NOTSET)


# ── context ───────────────────────────────────────────────────────────────────────────────────────


@app.job
def effect(ctx: Context, key: str, then: str = "return") -> str:
    """Write a row in the transaction that completes the job, then end as told."""
    with noted(ctx):
        with ctx.transaction() as conn:
            conn.execute("INSERT INTO effects (key, attempt) VALUES (%s, %s)", [key, ctx.job.attempt])
            if ctx.job.attempt == 1:
                if then == "kill inside":
                    os.kill(os.getpid(), 9)
                if then == "raise inside":
                    raise ValueError("inside")
                if then == "sleep inside":
                    note(ctx, "inside")
                    time.sleep(2.5)
        if then == "kill after":
            os.kill(os.getpid(), 9)
        if then == "raise after":
            raise ValueError("after")
        return "the result"


@app.job
def await_row(ctx: Context, key: str) -> bool:
    """Tell whether the caller's row is there."""
    with noted(ctx), app.connection() as conn:
        row = conn.execute("SELECT count(*) FROM effects WHERE key = %s", [key]).fetchone()
        return bool(row and row[0])


@app.job
def progress(ctx: Context, steps: int) -> str:
    with noted(ctx):
        for step in range(1, steps + 1):
            ctx.progress(step, steps, f"step {step}")
        return "all"


@app.job
def partials(ctx: Context, count: int) -> int:
    with noted(ctx):
        for number in range(count):
            ctx.partial({"number": number, "text": "한글 \U0001f600"})
        return count
