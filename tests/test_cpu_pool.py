"""CPU pools: real processes, signals and crashes. After each test nothing of them is left."""

from __future__ import annotations

import asyncio
import collections
import hashlib
import json
import logging
import os
import pickle
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import queuety
from queuety import (
    CallRefused,
    CallTimeout,
    CpuEvent,
    CpuPool,
    PoolBroken,
    PoolFull,
    PoolStopped,
    RemoteError,
    ResultRefused,
    UsageError,
    WorkerCrashed,
    WorkerUnavailable,
)
from queuety.cpu import call, dispatcher
from queuety.cpu import pool as module
from tests import ROOT
from tests.apps import cpu
from tests.daemon import until
from tests.documents import blocks

F = "tests.apps.cpu:"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, thread or file of a pool outlives its test."""
    children, threads, files = _children(), _threads(), _files()
    yield
    assert _children() == children
    assert _threads() == threads
    assert _files() == files


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("queuety-cpu")}


def _files() -> int:
    return psutil.Process().num_fds()


@pytest.fixture
def pool() -> Iterator[CpuPool]:
    with CpuPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[CpuPool]:
    with CpuPool(1) as pool:
        yield pool


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listen(pool: CpuPool, *names: str) -> list[CpuEvent]:
    heard: list[CpuEvent] = []
    for name in names or ("dispatch", "done", "fail", "crash", "stopped"):
        pool.on(name, heard.append)
    return heard


class Caller(threading.Thread):
    """A blocking call in a thread."""

    def __init__(self, pool: CpuPool, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._call = lambda: pool.run_blocking(*args, **kwargs)
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def ended(self) -> Caller:
        self.join(30)
        assert not self.is_alive()
        return self


def marked(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and bool(path.read_text())


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_is_run_in_another_process(pool):
    assert pool.run_blocking(F + "add", 1, b=2) == 3
    assert pool.run_blocking(F + "pid") not in (os.getpid(), os.getppid())
    assert pool.run_blocking(F + "wait_and_add", 1, 2) == 3
    assert pool.run_blocking(F + "Shop.price", 995) == "9.95"


def test_a_function_is_awaited():
    async def main() -> list[Any]:
        async with CpuPool(2) as pool:
            return await asyncio.gather(*(pool.run(F + "add", n, b=1) for n in range(50)))

    assert asyncio.run(main()) == list(range(1, 51))


def test_large_data_goes_both_ways(pool):
    data = {"bytes": os.urandom(20_000_000), "numbers": list(range(300_000)), "text": "é\ud800" * 100_000}

    assert pool.run_blocking(F + "echo", data) == data


def test_calls_run_beside_each_other(pool, tmp_path):
    first = Caller(pool, F + "wait_for", str(tmp_path / "go"))
    (tmp_path / "go").write_text("x") if pool.run_blocking(F + "pid") else None

    assert first.ended().value != os.getpid()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("add", "cannot be meant"),
        ("tests/apps/cpu.py:add", "cannot be meant"),
        ("tests.apps.cpu:", "cannot be meant"),
        ("tests.apps.cpu:add()", "cannot be meant"),
        (F + "subtract", "no subtract"),
        (F + "Shop.sell", "no Shop.sell"),
        (F + "NOT_A_FUNCTION", "is a int, which cannot be called"),
        ("tests.apps.nothing:add", "no module 'tests.apps.nothing'"),
        ("nothing_of_this_name.sub:add", "no module 'nothing_of_this_name'"),
        ("__main__:add", "main module"),
        (F + "Shop.__init__", "cannot be meant: __init__"),
        (F + "__class__", "cannot be meant: __class__"),
        (F + "add.__call__", "cannot be meant: __call__"),
        (cpu.add, "by a text, not by a function"),
        (lambda: None, "by a text"),
        (7, "by a text"),
    ],
)
def test_a_function_that_is_not_there_is_refused_at_the_call(pool, name, says):
    heard = listen(pool)

    with pytest.raises(CallRefused, match=says):
        pool.run_blocking(name, 1)

    assert heard == []


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is not imported here, and must not be."""
    package = tmp_path / "heavy_library"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nHOME = os.getpid()\n")
    (package / "core.py").write_text("from heavy_library import HOME\ndef home(): return HOME\n")
    (package / "broken.py").write_text("raise RuntimeError('it does not even load')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "heavy_library"


def test_what_a_function_needs_is_imported_in_the_worker_only(pool, heavy):
    assert pool.run_blocking(f"{heavy}.core:home") in pool.pids

    assert not [name for name in sys.modules if name.startswith(heavy)]


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (".core:nothing", "no nothing"),
        (".broken:home", "importing heavy_library.broken fails: RuntimeError: it does not even load"),
        (".core.deeper:home", "heavy_library.core"),
    ],
)
def test_what_only_the_worker_can_see_is_refused_by_the_worker(pool, heavy, rest, says):
    with pytest.raises(CallRefused, match=says):
        pool.run_blocking(heavy + rest)

    assert pool.crashes == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "culprit"),
    [
        ((1, lambda: None), {}, "argument 2, a function"),
        ((), {"a": 1, "b": threading.Lock()}, "argument 'b', a lock"),
        (([1, {"x": threading.Lock()}],), {}, "argument 1, a list"),
        ((cpu.local_class(),), {}, "argument 1, a local_class.<locals>.Local"),
    ],
)
def test_what_is_not_data_is_refused_at_the_call_and_named(pool, args, kwargs, culprit):
    heard = listen(pool)

    with pytest.raises(CallRefused, match=culprit):
        pool.run_blocking(F + "add", *args, **kwargs)

    assert heard == []


def test_data_that_is_nested_too_deep_is_refused_by_that_name(pool):
    with pytest.raises(CallRefused, match="argument 1, a list, is nested too deep to be pickled") as caught:
        pool.run_blocking(F + "echo", cpu.nested(2000))
    assert "flatten" in caught.value.hint

    with pytest.raises(ResultRefused, match="a list that is nested too deep to be pickled"):
        pool.run_blocking(F + "nested", 2000)


def test_arguments_that_cannot_be_unpickled_are_told(pool):
    with pytest.raises(CallRefused, match="unpickled in the worker: ValueError: the trap"):
        pool.run_blocking(F + "echo", cpu.Trap())


@pytest.mark.parametrize("name", ["a_lambda", "local_class", "trap"])
def test_a_result_that_cannot_travel_is_told_and_harms_no_worker(single, name):
    before = single.run_blocking(F + "pid")

    with pytest.raises(ResultRefused, match="pickled"):
        single.run_blocking(F + name)

    assert single.run_blocking(F + "pid") == before


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), True, "60", 1e12])
def test_a_time_limit_that_cannot_be_meant_is_refused(pool, limit):
    with pytest.raises(UsageError, match="timeout must be a number of seconds"):
        pool.run_blocking(F + "add", 1, timeout=limit)


@pytest.mark.parametrize(
    "options",
    [
        {"processes": 0},
        {"processes": True},
        {"processes": 1.5},
        {"processes": 10**6},
        {"max_restarts": -1},
        {"max_waiting": -1},
        {"start_timeout": 0},
        {"start_timeout": None},
    ],
)
def test_a_pool_that_cannot_be_meant_is_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        CpuPool(**options)


# ── errors of functions ───────────────────────────────────────────────────────────────────────────────────────


def test_an_error_arrives_as_it_was_raised_with_the_workers_traceback(pool):
    with pytest.raises(cpu.OutOfStock) as caught:
        pool.run_blocking(F + "out_of_stock", "tea")

    assert (caught.value.article, caught.value.left) == ("tea", 0)
    assert "in out_of_stock" in str(caught.value.__cause__)
    assert "queuety/cpu" not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("Unpicklable", "tests.apps.cpu.Unpicklable: cannot travel"),
        ("TwoArguments", "tests.apps.cpu.TwoArguments: kept as one"),
        ("SystemExit", "SystemExit"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("GeneratorExit", "GeneratorExit"),
        ("CancelledError", "CancelledError"),
        ("StopIteration", "StopIteration"),
    ],
)
def test_an_error_that_cannot_travel_or_would_end_its_caller_arrives_as_a_stand_in(single, kind, named):
    before = single.run_blocking(F + "pid")

    with pytest.raises(RemoteError, match=named) as caught:
        single.run_blocking(F + "fail", kind)

    assert "in fail" in str(caught.value.__cause__)
    assert caught.value.kind.endswith(kind)
    assert single.run_blocking(F + "pid") == before


def test_an_error_without_a_text_arrives(pool):
    with pytest.raises(cpu.NoText):
        pool.run_blocking(F + "fail", "NoText")


# ── time limits ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_over_its_limit_is_killed_and_its_worker_replaced(single):
    before = single.run_blocking(F + "pid")

    with pytest.raises(
        CallTimeout, match=r"tests\.apps\.cpu:nap ran longer than its limit of 0\.2 s"
    ) as caught:
        single.run_blocking(F + "nap", 60, timeout=0.2)

    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.function, caught.value.limit_s) == (F + "nap", 0.2)
    until(lambda: gone(before), what="end of the process")
    assert single.run_blocking(F + "pid") != before
    assert single.crashes == 0


def test_what_a_killed_function_started_dies_with_it(single, tmp_path):
    with pytest.raises(CallTimeout):
        single.run_blocking(F + "start_a_child", str(tmp_path / "pid"), timeout=1.5)

    child = int((tmp_path / "pid").read_text())
    until(lambda: gone(child), what="end of the child")


def test_waiting_for_a_worker_does_not_count_against_the_limit(single):
    first = Caller(single, F + "nap", 1.0)
    until(lambda: single.pids and single.waiting == 0, what="the first call")

    assert single.run_blocking(F + "add", 1, timeout=0.5) == 1
    first.ended()


def test_a_stopped_process_is_over_its_limit_too(single):
    with pytest.raises(CallTimeout):
        single.run_blocking(F + "signal_myself", signal.SIGSTOP, timeout=0.3)

    assert single.run_blocking(F + "add", 1) == 1


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "code", "number", "says"),
    [
        (("leave", 3), 3, None, "ended with exit code 3"),
        (("leave", 0), 0, None, "ended with exit code 0"),
        (("segfault",), None, signal.SIGSEGV, "was killed by SIGSEGV"),
        (("signal_myself", signal.SIGKILL), None, signal.SIGKILL, "was killed by SIGKILL"),
    ],
)
def test_a_crash_is_its_callers_alone(pool, tmp_path, call, code, number, says):
    other = Caller(pool, F + "wait_for", str(tmp_path / "go"))
    name, *args = call

    with pytest.raises(WorkerCrashed, match=f"{name} {says}") as caught:
        pool.run_blocking(F + name, *args)

    assert (caught.value.code, caught.value.signal) == (code, number)
    assert pool.run_blocking(F + "add", 1) == 1
    (tmp_path / "go").write_text("x")
    assert other.ended().error is None


def test_a_system_without_waitid_tells_how_a_worker_died_too(single, monkeypatch):
    monkeypatch.delattr(os, "waitid")

    with pytest.raises(WorkerCrashed, match="exit code 3"):
        single.run_blocking(F + "leave", 3)
    with pytest.raises(WorkerCrashed, match="SIGKILL"):
        single.run_blocking(F + "signal_myself", signal.SIGKILL)
    with pytest.raises(CallTimeout):
        single.run_blocking(F + "nap", 60, timeout=0.1)

    assert single.run_blocking(F + "add", 1) == 1


def test_a_dead_worker_is_seen_though_a_fork_of_it_holds_its_socket_open(single, tmp_path):
    with pytest.raises(WorkerCrashed, match="ended with exit code 4"):
        single.run_blocking(F + "leave_a_fork_that_holds_everything_open", str(tmp_path / "pid"))

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert single.run_blocking(F + "add", 1) == 1


@pytest.mark.parametrize("name", ["close_everything", "write_everywhere"])
def test_a_function_that_spoils_the_connection_is_ended(single, name):
    with pytest.raises(WorkerCrashed):
        single.run_blocking(F + name)

    assert single.run_blocking(F + "add", 1) == 1


def test_a_worker_killed_from_outside_while_idle_is_replaced(pool):
    heard = listen(pool, "crash")
    victim = pool.run_blocking(F + "pid")

    os.kill(victim, signal.SIGKILL)

    until(lambda: victim not in pool.pids, what="the pool to see it")
    assert [(event.call, event.pid) for event in heard] == [(None, victim)]
    assert pool.run_blocking(F + "pid") != victim


def test_a_worker_killed_from_outside_while_busy_costs_one_call(pool):
    callers = [Caller(pool, F + "nap", 1.0) for _ in range(2)]
    until(lambda: len(pool.pids) == 2 and not pool.waiting, what="both calls")
    heard = listen(pool, "dispatch")
    callers.append(Caller(pool, F + "nap", 0.01))

    os.kill(pool.pids[0], signal.SIGKILL)

    errors = [type(caller.ended().error) for caller in callers]
    assert collections.Counter(errors) == {type(None): 2, WorkerCrashed: 1}
    assert len(heard) <= 3


def test_after_too_many_crashes_the_pool_is_broken(tmp_path):
    with CpuPool(2, max_restarts=2) as pool:
        heard = listen(pool, "crash", "stopped")
        running = Caller(pool, F + "wait_for", str(tmp_path / "go"))
        for _ in range(2):
            with pytest.raises(WorkerCrashed):
                pool.run_blocking(F + "leave", 1)
        last = Caller(pool, F + "signal_myself", signal.SIGSTOP)
        victim = until(lambda: _stopped(pool), what="the last crash")
        waiting = Caller(pool, F + "add", 1)
        until(lambda: pool.waiting == 1, what="a call that waits")
        os.kill(victim, signal.SIGKILL)

        assert isinstance(last.ended().error, WorkerCrashed)
        assert isinstance(waiting.ended().error, PoolBroken)
        with pytest.raises(PoolBroken, match="crashed 3 times, and max_restarts is 2"):
            pool.run_blocking(F + "add", 1)
        (tmp_path / "go").write_text("x")
        assert running.ended().error is None
        until(lambda: not pool.pids, what="the end of the last worker")

    assert [event.type for event in heard] == ["crash"] * 3 + ["stopped"]


def _stopped(pool: CpuPool) -> int | None:
    return next((pid for pid in pool.pids if psutil.Process(pid).status() == psutil.STATUS_STOPPED), None)


def test_no_restart_may_be_allowed():
    with CpuPool(1, max_restarts=0) as pool:
        with pytest.raises(WorkerCrashed):
            pool.run_blocking(F + "leave", 1)

        with pytest.raises(PoolBroken):
            pool.run_blocking(F + "add", 1)


def test_a_thousand_calls_with_random_crashes_end_exactly_once_each():
    count, seed = 1000, 7

    async def main(pool: CpuPool) -> list[Any]:
        calls = (pool.run(F + "chance", number, seed) for number in range(count))
        return await asyncio.gather(*calls, return_exceptions=True)

    pool = CpuPool(2, max_restarts=count)
    heard = listen(pool)
    with pool:
        answers = asyncio.run(main(pool))

    kinds = collections.Counter(type(answer) for answer in answers)
    assert set(kinds) == {int, cpu.OutOfStock, WorkerCrashed}
    assert all(answer == n for n, answer in enumerate(answers) if isinstance(answer, int))
    ends = collections.Counter(event.call for event in heard if event.type in ("done", "fail"))
    assert len(ends) == count
    assert set(ends.values()) == {1}
    begun = collections.Counter(event.call for event in heard if event.type == "dispatch")
    assert begun == ends  # nothing was begun twice
    assert sum(event.type == "crash" for event in heard) == kinds[WorkerCrashed] == pool.crashes


@pytest.mark.soak
def test_calls_end_once_while_workers_are_killed_all_the_time():
    over = threading.Event()
    pool = CpuPool(3, max_restarts=10**6)

    def kill() -> None:
        while not over.wait(0.3):  # more often, and none would ever come up on a busy machine
            for pid in random.sample(pool.pids, min(1, len(pool.pids))):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    async def main(pool: CpuPool) -> collections.Counter[str]:
        async def call(number: int) -> str:
            try:
                async with asyncio.timeout(None if number % 5 else 0.05 * (number % 7)):
                    assert await pool.run(F + "echo", b"x" * (number * 997 % 500_000)) is not None
            except (WorkerCrashed, TimeoutError) as error:
                return type(error).__name__
            return "value"

        return collections.Counter(await asyncio.gather(*map(call, range(5_000))))

    heard = listen(pool)
    with pool:
        killer = threading.Thread(target=kill)
        killer.start()
        ends = asyncio.run(main(pool))
        over.set()
        killer.join()

    assert set(ends) <= {"value", "WorkerCrashed", "TimeoutError"}
    assert ends["value"] > 1000
    per_call = collections.Counter(event.call for event in heard if event.type in ("done", "fail"))
    assert set(per_call.values()) == {1}


# ── workers that do not come up, or do not listen ─────────────────────────────────────────────────────────────


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have every new worker run a text before anything else."""

    def install(text: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    return install


@pytest.fixture
def no_files() -> Iterator[Callable[[bool], None]]:
    """Have the system refuse new files, or give them again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def refuse(refused: bool) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]) if refused else limits)

    yield refuse
    refuse(False)


def test_a_worker_that_stalls_while_idle_costs_no_call(single, monkeypatch):
    monkeypatch.setattr(dispatcher, "_ARRIVE_S", 0.5)
    victim = single.run_blocking(F + "pid")
    os.kill(victim, signal.SIGSTOP)

    assert single.run_blocking(F + "pid", timeout=20) != victim
    assert single.crashes == 1
    assert gone(victim)


def test_large_arguments_may_take_longer_to_arrive_as_long_as_they_go_on(single, monkeypatch):
    single.run_blocking(F + "add", 1)
    monkeypatch.setattr(dispatcher, "_ARRIVE_S", 1.0)
    hold = threading.Timer(0.5, os.kill, [single.pids[0], signal.SIGCONT])
    os.kill(single.pids[0], signal.SIGSTOP)
    hold.start()

    assert single.run_blocking(F + "size", b"x" * 30_000_000) == 30_000_000
    assert single.crashes == 0


def test_a_worker_that_does_not_come_up_is_ended(at_start):
    at_start("import time; time.sleep(60)")

    with (
        CpuPool(1, max_restarts=1, start_timeout=0.3) as pool,
        pytest.raises(PoolBroken, match=r"the last one did not come up within 0\.3 s and was killed"),
    ):
        pool.run_blocking(F + "add", 1)


def test_a_worker_that_dies_as_it_starts_is_a_crash_and_tells_its_exit_code(at_start):
    at_start("import os; os._exit(7)")

    with (
        CpuPool(1, max_restarts=2) as pool,
        pytest.raises(PoolBroken, match=r"crashed 3 times.* exit code 7 before it could be given a call"),
    ):
        pool.run_blocking(F + "add", 1)


def test_a_call_that_no_worker_lives_to_begin_has_its_end(at_start):
    at_start(
        "import os, queuety.cpu.worker as worker\nworker.read_frame = lambda link: (link.recv(1), os._exit(5))"
    )

    with (
        CpuPool(1, max_restarts=100) as pool,
        pytest.raises(WorkerCrashed, match=r"5 processes died before they began.* exit code 5"),
    ):
        pool.run_blocking(F + "add", 1)


def test_a_system_that_refuses_workers_for_a_while_costs_nothing_but_time(single, no_files, caplog):
    victim = single.run_blocking(F + "pid")
    no_files(True)
    os.kill(victim, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "queuety.cpu"):
        caller = Caller(single, F + "add", 1)
        until(lambda: caplog.text.count("cannot be started now: [Errno 24]") >= 3, what="three tries")
    no_files(False)

    assert caller.ended().value == 1
    assert single.crashes == 1  # the one that was killed


def test_a_call_does_not_wait_for_ever_for_a_worker_that_cannot_be_started(single, no_files, monkeypatch):
    monkeypatch.setattr(dispatcher, "_HELPLESS_S", 0.3)
    victim = single.run_blocking(F + "pid")
    no_files(True)
    os.kill(victim, signal.SIGKILL)

    caller = Caller(single, F + "add", 1).ended()
    no_files(False)

    assert isinstance(caller.error, WorkerUnavailable)
    assert re.search("no worker could be started.*Too many open files", str(caller.error))
    assert single.run_blocking(F + "add", 1) == 1


def test_a_pool_that_cannot_begin_at_present_can_later(single, no_files):
    no_files(True)
    with pytest.raises(WorkerUnavailable, match="Too many open files"):
        single.run_blocking(F + "add", 1)
    no_files(False)

    assert single.run_blocking(F + "add", 1) == 1


def test_a_pool_whose_thread_cannot_start_at_present_can_later(single, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(WorkerUnavailable, match="new thread"):
            single.run_blocking(F + "add", 1)

    assert single.run_blocking(F + "add", 1) == 1


def test_a_crash_is_counted_before_its_caller_is_told(single):
    counted: list[int] = []
    single.on("crash", lambda event: counted.append(single.crashes))
    single.on("fail", lambda event: counted.append(single.crashes))

    with pytest.raises(WorkerCrashed):
        single.run_blocking(F + "leave", 3)

    assert counted == [1, 1]


def test_a_result_that_is_refused_here_is_no_done(single):
    heard = listen(single)

    with pytest.raises(ResultRefused):
        single.run_blocking(F + "trap")

    assert [event.type for event in heard] == ["dispatch", "fail"]
    assert "the trap" in str(heard[1].error)


# ── what a function leaves ────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_of_a_function_never_answers(single):
    assert single.run_blocking(F + "fork_and_return_twice") == "from the worker"

    assert [single.run_blocking(F + "add", n) for n in range(20)] == list(range(20))
    assert single.crashes == 0


def test_an_answer_for_another_call_is_a_crash(single):
    heard = listen(single, "dispatch")
    single.run_blocking(F + "add", 1)

    with pytest.raises(WorkerCrashed, match="answer_for answered out of turn and was killed"):
        single.run_blocking(F + "answer_for", heard[0].call)

    assert single.run_blocking(F + "add", 1) == 1


@pytest.mark.parametrize(
    "what",
    [
        *("alarm", "timer", "handler", "ignored", "mask", "directory", "raising", "watchdog"),
        *("dead child", "ended thread"),
    ],
)
def test_what_can_be_put_back_is_and_the_worker_goes_on(single, what):
    before = single.run_blocking(F + "surroundings")

    single.run_blocking(F + "leave_behind", what)
    if what in ("alarm", "watchdog"):
        single.run_blocking(F + "nap", 1.2)

    assert single.run_blocking(F + "surroundings") == before
    assert single.crashes == 0


@pytest.mark.parametrize("what", ["thread", "raw thread", "child", "fork"])
def test_a_worker_in_which_something_still_runs_is_replaced(single, what):
    pid = single.run_blocking(F + "leave_behind", what)

    assert single.run_blocking(F + "nap", 0.8) != pid
    assert gone(pid)
    assert single.crashes == 0


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_call_that_waits_never_begins(tmp_path):
    async def main() -> list[CpuEvent]:
        async with CpuPool(1) as pool:
            heard = listen(pool, "fail", "dispatch")
            first = asyncio.create_task(pool.run(F + "wait_for", str(tmp_path / "go")))
            while not heard:
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await pool.run(F + "note", str(tmp_path / "notes"), "ran")
            (tmp_path / "go").write_text("x")
            await first
        return heard

    heard = asyncio.run(main())

    assert not (tmp_path / "notes").exists()
    assert [(event.type, event.error) for event in heard] == [
        ("dispatch", None),
        ("fail", "cancelled before it began"),
    ]


def test_a_cancelled_call_that_runs_is_killed_and_blocks_nobody(tmp_path):
    async def main() -> None:
        async with CpuPool(1) as pool:
            running = asyncio.create_task(pool.run(F + "note", str(tmp_path / "notes"), "ran", 60.0))
            while not (tmp_path / "notes").exists():
                await asyncio.sleep(0.01)
            victim = pool.pids[0]
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await pool.run(F + "pid") != victim
            assert pool.crashes == 0
            assert gone(victim)

    asyncio.run(main())


# ── stop ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_stop_refuses_what_is_new_fails_what_waits_and_lets_finish_what_runs(tmp_path):
    pool = CpuPool(1)
    heard = listen(pool, "dispatch", "fail", "done", "stopped")
    running = Caller(pool, F + "wait_for", str(tmp_path / "go"))
    until(lambda: heard, what="dispatch")
    waiting = [Caller(pool, F + "note", str(tmp_path / "notes"), "ran") for _ in range(3)]
    until(lambda: pool.waiting == 3, what="calls that wait")

    stops = [threading.Thread(target=pool.stop_blocking) for _ in range(2)]
    for stop in stops:
        stop.start()
    for caller in waiting:
        assert isinstance(caller.ended().error, PoolStopped)
    with pytest.raises(PoolStopped, match="stopped"):
        pool.run_blocking(F + "add", 1)
    assert all(stop.is_alive() for stop in stops)
    (tmp_path / "go").write_text("x")
    for stop in stops:
        stop.join(20)

    assert running.ended().error is None
    assert not (tmp_path / "notes").exists()
    pool.stop_blocking()  # again
    assert [event.type for event in heard] == ["dispatch", "fail", "fail", "fail", "done", "stopped"]


def test_stop_with_a_limit_kills_what_still_runs():
    async def main() -> None:
        pool = CpuPool(2)
        running = asyncio.create_task(pool.run(F + "nap", 60))
        while not pool.pids:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await pool.stop(timeout=0.1)
        with pytest.raises(PoolStopped):
            await running
        await pool.stop()

    asyncio.run(main())


def test_a_pool_that_was_never_used_stops():
    with CpuPool() as pool:
        heard = listen(pool)

    assert [event.type for event in heard] == ["stopped"]
    with pytest.raises(PoolStopped):
        pool.run_blocking(F + "add", 1)


def test_a_block_that_an_error_leaves_does_not_wait_for_what_runs(monkeypatch):
    monkeypatch.setattr(module, "_HASTE_S", 0.3)

    async def leave(running: list[asyncio.Task[Any]]) -> None:
        async with CpuPool(1) as pool:
            heard = listen(pool, "dispatch")
            running.append(asyncio.create_task(pool.run(F + "nap", 60)))
            while not heard:
                await asyncio.sleep(0.01)
            raise ZeroDivisionError

    async def main() -> None:
        running: list[asyncio.Task[Any]] = []
        with pytest.raises(ZeroDivisionError):
            await leave(running)
        with pytest.raises(PoolStopped, match="stopped while"):
            await running[0]

    asyncio.run(main())


def test_a_blocking_block_that_an_error_leaves_does_not_wait_either(monkeypatch):
    monkeypatch.setattr(module, "_HASTE_S", 0.3)
    running: list[Caller] = []

    def leave() -> None:
        with CpuPool(1) as pool:
            heard = listen(pool, "dispatch")
            running.append(Caller(pool, F + "nap", 60))
            until(lambda: heard, what="dispatch")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()

    assert isinstance(running[0].ended().error, PoolStopped)


def test_ctrl_c_ends_a_block_in_which_a_thread_waits_for_a_call(tmp_path):
    script = program(
        """
        import asyncio
        from queuety import CpuPool
        async def main():
            async with CpuPool(1) as pool:
                pool.on("dispatch", lambda event: print("runs", flush=True))
                await asyncio.to_thread(pool.run_blocking, "tests.apps.cpu:nap", 600, timeout=None)
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        tmp_path,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "runs\n"

    script.send_signal(signal.SIGINT)

    assert script.communicate(timeout=30)[0] == "interrupted\n"


def test_a_stopped_pool_cannot_be_entered_again():
    pool = CpuPool(1)
    with pool:
        pass

    with pytest.raises(PoolStopped, match="was stopped and cannot be entered again"), pool:
        pass

    async def enter() -> None:
        async with pool:
            pass

    with pytest.raises(PoolStopped, match="entered again") as caught:
        asyncio.run(enter())
    assert "lifespan" in caught.value.hint


def test_stop_amid_load_leaves_no_call_without_an_end():
    async def main() -> collections.Counter[str]:
        pool = CpuPool(2)
        calls = [asyncio.create_task(pool.run(F + "nap", 0.002)) for _ in range(300)]
        await asyncio.sleep(0.5)
        await pool.stop()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return collections.Counter(type(answer).__name__ for answer in answers)

    ends = asyncio.run(main())

    assert set(ends) <= {"int", "PoolStopped"}
    assert sum(ends.values()) == 300


def test_start_brings_all_workers_up_and_keeps_them_up():
    with CpuPool(2) as pool:
        pool.start()
        until(lambda: len(pool.pids) == 2, what="two workers")
        victim = pool.run_blocking(F + "pid")
        os.kill(victim, signal.SIGKILL)

        until(lambda: victim not in pool.pids and len(pool.pids) == 2, what="another worker")


def test_workers_come_up_as_calls_need_them():
    with CpuPool(8) as pool:
        assert pool.pids == []
        pool.run_blocking(F + "add", 1)
        pool.run_blocking(F + "add", 1)

        assert len(pool.pids) == 1


def test_a_pool_that_is_dropped_ends_by_itself():
    pool = CpuPool(1)
    pid = pool.run_blocking(F + "pid")

    del pool

    until(lambda: gone(pid) and not _threads(), what="the end of the pool")


def program(text: str, tmp_path: Path) -> subprocess.Popen[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_script_without_a_guard_ends_without_stop_and_leaves_nothing(tmp_path):
    script = program(
        """
        import threading
        from queuety import CpuPool
        print("main module", flush=True)
        pool = CpuPool(2).start()
        print(pool.run_blocking("tests.apps.cpu:pid"), flush=True)
        def wait():
            try:
                pool.run_blocking("tests.apps.cpu:nap", 60)
            except BaseException as error:
                pass
        threading.Thread(target=wait, daemon=True).start()
        """,
        tmp_path,
    )

    said, _ = script.communicate(timeout=30)

    assert script.returncode == 0
    assert said.splitlines()[0] == "main module"
    assert len(said.splitlines()) == 2  # the main module ran once
    until(lambda: gone(int(said.splitlines()[1])), what="end of the worker")


def test_workers_die_with_the_process_that_has_them(tmp_path):
    script = program(
        """
        from queuety import CpuPool
        pool = CpuPool(1)
        print(pool.run_blocking("tests.apps.cpu:pid"), flush=True)
        pool.run_blocking("tests.apps.cpu:burn", 10**12)
        """,
        tmp_path,
    )
    assert script.stdout is not None
    worker = int(script.stdout.readline())

    script.kill()
    script.communicate()

    until(lambda: gone(worker), what="end of the worker")


def test_ctrl_c_of_the_terminal_reaches_the_application_only(tmp_path):
    script = program(
        """
        import os, signal
        from queuety import CpuPool
        os.setpgid(0, 0)
        with CpuPool(1) as pool:
            pid = pool.run_blocking("tests.apps.cpu:pid")
            signal.signal(signal.SIGINT, lambda *_: None)
            os.killpg(0, signal.SIGINT)
            print(pool.run_blocking("tests.apps.cpu:pid") == pid, pool.crashes, flush=True)
        """,
        tmp_path,
    )

    assert script.communicate(timeout=30)[0] == "True 0\n"


# ── events, and what waits ────────────────────────────────────────────────────────────────────────────────────


def test_events_tell_the_life_of_a_call():
    pool = CpuPool(1)
    heard = listen(pool)
    with pool:
        pid = pool.run_blocking(F + "pid")
        with pytest.raises(cpu.OutOfStock):
            pool.run_blocking(F + "out_of_stock", "tea")
        with pytest.raises(WorkerCrashed):
            pool.run_blocking(F + "leave", 3)

    assert [event.type for event in heard] == [
        *("dispatch", "done"),
        *("dispatch", "fail"),
        *("dispatch", "crash", "fail"),
        "stopped",
    ]
    assert {event.pid for event in heard[:-1]} == {pid}
    assert heard[3].error == "tests.apps.cpu.OutOfStock: tea"
    assert heard[5].error == "ended with exit code 3"
    assert heard[1].function == F + "pid"
    assert heard[1].seconds is not None


@pytest.mark.parametrize(
    ("name", "hint"), [("crashed", "'crash'"), ("", "there are dispatch"), (7, "there are")]
)
def test_a_misspelt_event_is_refused(name, hint):
    with pytest.raises(UsageError, match=hint):
        CpuPool().on(name, print)


@pytest.mark.parametrize("callback", [None, "print", asyncio.sleep])
def test_a_callback_that_could_not_be_called_is_refused(callback):
    with pytest.raises(UsageError, match="plain function"):
        CpuPool().on("done", callback)


def test_a_callback_that_raises_harms_nobody(pool, caplog):
    heard: list[CpuEvent] = []
    pool.on("done", lambda event: 1 / 0)
    pool.on("done", heard.append)

    with caplog.at_level(logging.ERROR, "queuety.cpu"):
        assert pool.run_blocking(F + "add", 1) == 1
        assert pool.run_blocking(F + "add", 2) == 2

    assert len(heard) == 2
    assert caplog.text.count("ZeroDivisionError") == 2


def test_a_callback_cannot_wait_for_its_own_pool(pool):
    errors: list[str] = []

    def wait(event: CpuEvent) -> None:
        for block in (pool.stop_blocking, lambda: pool.run_blocking(F + "add", 1)):
            try:
                block()
            except UsageError as error:
                errors.append(str(error))

    pool.on("done", wait)
    pool.run_blocking(F + "add", 1)

    assert len(errors) == 2


def test_the_number_of_calls_that_wait_may_be_bounded(tmp_path):
    with CpuPool(1, max_waiting=1) as pool:
        heard = listen(pool, "dispatch")
        first = Caller(pool, F + "wait_for", str(tmp_path / "go"))
        until(lambda: heard, what="dispatch")
        second = Caller(pool, F + "add", 1)
        until(lambda: pool.waiting == 1, what="a call that waits")

        with pytest.raises(PoolFull, match="1 calls wait"):
            pool.run_blocking(F + "add", 1)
        (tmp_path / "go").write_text("x")

        assert first.ended().error is None
        assert second.ended().value == 1


# ── threads, loops and forks ──────────────────────────────────────────────────────────────────────────────────


def test_a_pool_serves_several_event_loops_and_threads(pool):
    async def calls(base: int) -> list[Any]:
        return await asyncio.gather(*(pool.run(F + "add", base, b=n) for n in range(20)))

    found: dict[int, list[Any]] = {}
    threads = [
        threading.Thread(target=lambda base=base: found.update({base: asyncio.run(calls(base))}))
        for base in (100, 200, 300)
    ]
    blocking = [Caller(pool, F + "add", n) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert found == {base: [base + n for n in range(20)] for base in (100, 200, 300)}
    assert [caller.ended().value for caller in blocking] == list(range(20))


def test_blocking_calls_are_refused_where_a_loop_runs():
    async def main() -> None:
        async with CpuPool(1) as pool:
            for block in (lambda: pool.run_blocking(F + "add", 1), pool.stop_blocking, pool.__enter__):
                with pytest.raises(UsageError, match="block the event loop"):
                    block()

    asyncio.run(main())


def test_a_fork_cannot_use_the_pool_of_its_parent_but_its_own(single):
    single.run_blocking(F + "add", 1)
    untouched = CpuPool(1)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            single.run_blocking(F + "add", 1)
        except UsageError:
            with untouched:
                code = 0 if untouched.run_blocking(F + "add", 1, b=1) == 2 else 2
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert single.run_blocking(F + "add", 2) == 2


def beats_while(work: Callable[[], Any]) -> int:
    """How often a heart-beat in the same event loop comes through while `work` is awaited or called."""

    async def main() -> int:
        beats, over = 0, False

        async def beat() -> None:
            nonlocal beats
            while not over:
                await asyncio.sleep(0.005)
                beats += 1

        heart = asyncio.create_task(beat())
        await asyncio.sleep(0.02)
        beats = 0
        result = work()
        if asyncio.iscoroutine(result):
            await result
        counted = beats
        over = True
        await heart
        return counted

    return asyncio.run(main())


def test_the_heart_beats_while_a_function_computes(pool):
    rounds = 4_000_000
    pool.run_blocking(F + "add", 1)

    blocked = beats_while(lambda: cpu.burn(rounds))
    free = beats_while(lambda: pool.run(F + "burn", rounds))

    assert blocked <= 1
    assert free >= 20


def test_the_heart_beats_while_large_data_is_pickled_and_unpickled(pool):
    numbers = list(range(4_000_000))
    pool.run_blocking(F + "add", 1)

    blocked = beats_while(lambda: pickle.loads(pickle.dumps(numbers)))
    there = beats_while(lambda: pool.run(F + "size", numbers))
    back = beats_while(lambda: pool.run("builtins:list", range(4_000_000)))

    assert blocked <= 1
    assert there >= 5
    assert back >= 5


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_are_copied_in_pieces(kind):
    """So that other threads have their turn in between; nothing is timed here."""
    value = kind(os.urandom(3 * call._PIECE + 7))
    copies: list[int] = []

    class Buffer(bytearray):
        def __setitem__(self, place: Any, data: Any) -> None:
            copies.append(len(data))
            super().__setitem__(place, data)

    packed = call._dump(value)
    buffer = Buffer(len(value))
    call._Source(memoryview(value)).readinto(buffer)

    assert pickle.loads(b"".join(packed)) == value == buffer
    assert max(copies) == call._PIECE
    if kind is bytearray:
        assert max(map(len, packed)) == call._PIECE


# ── in other houses ───────────────────────────────────────────────────────────────────────────────────────────


def test_importing_the_pool_brings_nothing_of_the_queue():
    script = "import sys; from queuety import CpuPool; print(sorted(n for n in sys.modules if n.startswith('queuety')))"

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )

    parts = {name.split(".")[1] for name in eval(said.stdout) if "." in name}
    assert parts == {"cpu", "errors"}


def test_every_error_of_a_call_is_public():
    for name in ("CallRefused", "CallTimeout", "PoolFull", "RemoteError", "ResultRefused", "WorkerCrashed"):
        assert getattr(queuety, name).__name__ == name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The README's application under uvicorn, and its address."""
    section = "CPU work beside an event loop"
    shown = [block for block in blocks(ROOT / "README.md") if block.section == section]
    work, application = (block.text for block in shown if block.language == "python")
    (tmp_path / "work.py").write_text(work)
    (tmp_path / "web.py").write_text(application)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:app", f"--fd={listener.fileno()}", "--log-level=warning"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[listener.fileno()],
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield process, address
    process.kill()
    process.wait()


def _get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


def test_the_heart_of_a_web_application_never_stops(server):
    process, address = server
    _get(f"{address}/digest?text=warm&rounds=1")
    heart = [_get(f"{address}/heart")["beats"]]
    digest = ThreadPoolExecutor(1).submit(_get, f"{address}/digest?text=tea&rounds=2000000")
    while not digest.done():
        heart.append(_get(f"{address}/heart")["beats"])

    value = b"tea"
    for _ in range(2_000_000):
        value = hashlib.sha256(value).digest()
    assert digest.result() == {"digest": value.hex()}
    assert heart[-1] - heart[0] >= 5
    workers = psutil.Process(process.pid).children()
    assert workers

    process.terminate()
    process.wait(20)

    until(lambda: not any(worker.is_running() for worker in workers), what="end of the workers")
