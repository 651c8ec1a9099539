"""Handlers that mistreat their process in every way that a queue must survive."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from queuety import Context, JobCancelled, Queuety
from tests.apps import basic
from tests.apps.basic import note, noted

app = Queuety()

for _name in ("ok", "echo", "sleep", "spin", "fail", "fail_until", "leave", "kill_self", "say"):
    app.job(getattr(basic, _name).function)


def forever() -> None:
    while True:
        time.sleep(0.01)


def hold_interpreter(seconds: float) -> None:
    """Sleep in C without letting go of the interpreter: no Python code of this process runs meanwhile.

    Signals are blocked, since they would end the sleep; most C code goes on regardless of them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── ends in the middle ────────────────────────────────────────────────────────────────────────────


@app.job
def hang_once(ctx: Context, attempt: int = 1) -> None:
    """Hang up to the attempt of that number; later ones end at once."""
    with noted(ctx):
        if ctx.job.attempt <= attempt:
            forever()


@app.job
def cancel_itself(ctx: Context) -> None:
    """Raise what only a cancel raises."""
    with noted(ctx):
        raise JobCancelled("by myself")


@app.job
def die_once(ctx: Context, seconds: float = 0) -> None:
    """Kill the own process at the first attempt."""
    with noted(ctx):
        if ctx.job.attempt == 1:
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGKILL)


@app.job
def fail_then_hang(ctx: Context) -> None:
    note(ctx, "start")
    if ctx.job.attempt == 1:
        raise ValueError("the first attempt fails")
    forever()


@app.job
def segfault(ctx: Context) -> None:
    note(ctx, "start")
    ctypes.string_at(0)


@app.job
def exit_politely(ctx: Context) -> None:
    note(ctx, "start")
    sys.exit("goodbye")


@app.job
def interrupt(ctx: Context) -> None:
    note(ctx, "start")
    raise KeyboardInterrupt


class Odd(BaseException):
    """Neither an Exception nor printable."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@app.job
def raise_odd(ctx: Context) -> None:
    note(ctx, "start")
    raise Odd


@app.job
def eat_memory(ctx: Context) -> None:
    note(ctx, "start")
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)) * 8)


# ── does not heed its time limit ──────────────────────────────────────────────────────────────────


@app.job(timeout=1)
def over(ctx: Context) -> None:
    note(ctx, "start")
    forever()


@app.job(timeout=1)
def over_and_swallow(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        try:
            forever()
        except Exception:  # noqa: BLE001
            continue


@app.job(timeout=1)
def over_and_swallow_all(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        try:
            forever()
        except BaseException:  # noqa: BLE001
            continue


@app.job(timeout=1)
def over_and_deaf(ctx: Context) -> None:
    note(ctx, "start")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    forever()


@app.job(timeout=1)
def over_in_c(ctx: Context) -> None:
    note(ctx, "start")
    hold_interpreter(60)


@app.job(timeout=1)
def over_and_wrap(ctx: Context) -> None:
    """Turn the time limit into an error of its own, as a library may."""
    note(ctx, "start")
    try:
        forever()
    except BaseException as error:
        raise RuntimeError("the library gave up") from error


@app.job(timeout=1)
def over_in_thread(ctx: Context) -> None:
    """Leave a thread and a child process behind that go on."""
    note(ctx, "start")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(os.environ["QUEUETY_TEST_LEDGER"] + ".child").write_text(str(child.pid))
    threading.Thread(target=forever).start()
    forever()


@app.job(timeout=1)
async def over_async(ctx: Context) -> None:
    note(ctx, "start")
    try:
        await asyncio.sleep(60)
    finally:
        note(ctx, "end")  # the handler may tidy up


@app.job(timeout=1)
async def over_async_and_swallow(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        with suppress(BaseException):
            await asyncio.sleep(60)


@app.job(timeout=1)
async def over_async_blocking(ctx: Context) -> None:
    note(ctx, "start")
    forever()


@app.job(timeout=0)
def unlimited(ctx: Context, seconds: float) -> None:
    with noted(ctx):
        time.sleep(seconds)


# ── is cancelled ──────────────────────────────────────────────────────────────────────────────────


@app.job
def heed(ctx: Context) -> str:
    """Ask whether to stop, and tidy up at leisure."""
    with noted(ctx):
        while not ctx.should_stop():
            time.sleep(0.05)
        time.sleep(0.5)
        return "tidied up"


@app.job
def tidy_up(ctx: Context, seconds: float) -> None:
    """Ask nothing; take a while to tidy up when interrupted."""
    note(ctx, "start")
    try:
        forever()
    finally:
        time.sleep(seconds)
        note(ctx, "end")


@app.job
def swallow_cancel(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        with suppress(BaseException):
            forever()


@app.job
def ask_and_ignore(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        with suppress(BaseException):
            ctx.should_stop()
            time.sleep(0.01)


@app.job
async def wait_async(ctx: Context, seconds: float = 60) -> None:
    note(ctx, "start")
    try:
        await asyncio.sleep(seconds)
    finally:
        note(ctx, "end")


# ── leaves its process in a bad state ─────────────────────────────────────────────────────────────


@app.job
def close_stdout(ctx: Context) -> None:
    with noted(ctx):
        sys.stdout.close()
        sys.stderr.close()


@app.job
def close_descriptors(ctx: Context, first: int = 0) -> None:
    with noted(ctx):
        os.closerange(first, 1024)


@app.job
def ignore_signals(ctx: Context) -> None:
    with noted(ctx):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)


@app.job
def leave_thread(ctx: Context) -> None:
    with noted(ctx):
        threading.Thread(target=forever).start()


@app.job
async def leave_async(ctx: Context) -> None:
    """Leave a thread in the loop's pool and a coroutine in the loop."""
    with noted(ctx):
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, forever)
        app.left = loop.create_task(_stubborn())  # type: ignore[attr-defined]
        await asyncio.sleep(0)


async def _stubborn() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@app.job
async def nap(ctx: Context, seconds: float = 0.01) -> int:
    """Sleep in the loop; returns how many coroutines the loop has."""
    with noted(ctx):
        await asyncio.sleep(seconds)
        return len(asyncio.all_tasks())


@app.job
def double_fork(ctx: Context, seconds: float = 2) -> None:
    """Leave a helper process behind whose parent is gone."""
    with noted(ctx):
        pid = os.fork()
        if not pid:
            if os.fork():
                os._exit(0)
            time.sleep(seconds)
            os._exit(3)
        os.waitpid(pid, 0)


@app.job
def fork_and_return(ctx: Context) -> int:
    """Fork, and let the child return from the handler too, as a forgotten exit does."""
    note(ctx, "start")
    os.fork()
    return os.getpid()


@app.job
def fork_and_raise(ctx: Context) -> None:
    note(ctx, "start")
    if not os.fork():
        raise RuntimeError("in the child")
    time.sleep(0.5)


@app.job
def terminate_child(ctx: Context) -> int:
    """Start a process by the default method and ask it to end; returns its exit code."""
    import multiprocessing

    with noted(ctx):
        child = multiprocessing.get_context("fork").Process(target=forever)
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(5)
        code = child.exitcode
        if code is None:
            child.kill()
        return code or 0


@app.job
def cut_backends(ctx: Context, then: str = "raise") -> str:
    """End the own worker's sessions, then raise or return."""
    note(ctx, "start")
    with psycopg.connect(os.environ["QUEUETY_DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'queuety worker%'
            """
        )
    if then == "raise":
        raise ValueError("my own fault")
    note(ctx, "end")
    return "done"


@app.job
def chain(ctx: Context, depth: int = 1) -> None:
    """Enqueue the next by the product's own call."""
    with noted(ctx):
        if depth:
            chain.enqueue(depth=depth - 1)


@app.job
def hold_then(ctx: Context, seconds: float) -> None:
    """Hold the interpreter in C."""
    with noted(ctx):
        hold_interpreter(seconds)


@app.job
def maybe_slow(ctx: Context, how: str = "", seconds: float = 0.0) -> Any:
    """Quick, unless told otherwise: `sleep`, `spin` or `c`."""
    with noted(ctx):
        if how == "sleep":
            time.sleep(seconds)
        elif how == "c":
            hold_interpreter(seconds)
        return how or None


@app.job
def value(ctx: Context, result: Any = None) -> Any:
    with noted(ctx):
        return result


_kept: list[bytearray] = []


@app.job
def grow(ctx: Context, mb: int) -> int:
    """Keep so much memory for good; returns the process id."""
    with noted(ctx):
        _kept.append(bytearray(os.urandom(1 << 20)) * mb)
        return os.getpid()
