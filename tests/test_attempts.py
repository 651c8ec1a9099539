"""Attempts, through a real pool: how often a job is started, when again, and what it ends with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuety import Queuety
from queuety.errors import JobFailed, WaitTimeout
from queuety.handle import JobHandle
from tests.daemon import Daemon, daemon, read_ledger, until

APP = "tests.apps.data:app"
QUICK = {"backoff": [0.1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attempts")


@pytest.fixture(scope="module")
def pool(shared: str, folder: Path) -> Iterator[Daemon]:
    """One pool for all tests here; it must outlive them all."""
    env = {"QUEUETY_UNKNOWN_HANDLER_GRACE": "0", "QUEUETY_WORKER_SLEEP": "0.5"}
    with daemon(
        shared, "--workers=2", app=APP, ledger=folder / "ledger", log=folder / "log", env=env
    ) as running:
        running.ready(2)
        yield running
        assert running.stop() == 0


@pytest.fixture
def app(shared: str, pool: Daemon) -> Iterator[Queuety]:
    queue = Queuety(shared)
    yield queue
    queue.close()


@pytest.fixture
def conn_shared(shared: str) -> Iterator[Any]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@pytest.fixture
def starts(folder: Path) -> Any:
    return lambda job: [
        one for one in read_ledger(folder / "ledger") if one.job == job.id and one.what == "start"
    ]


def events(job: JobHandle, kind: str) -> list[dict[str, Any]]:
    return [event.data or {} for event in job.events() if event.type == kind]


# ── how often ─────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_always_asks_to_come_back_is_buried_with_its_last_reason(app, starts):
    job = app.enqueue("always_retry", max_attempts=3)

    ended = job.wait(10)

    assert (ended.state, ended.attempts, len(starts(job))) == ("buried", 3, 3)
    assert "reason 3" in ended.error["message"]
    assert [event["error"]["message"] for event in events(job, "retried")] == ["reason 1", "reason 2"]


def test_a_snooze_costs_no_attempt(app, starts):
    job = app.enqueue("snooze", {"seconds": 0.1}, max_attempts=2)

    until(lambda: len(starts(job)) > 4, what="more starts than attempts")
    ended = cancel(job)

    assert (ended.state, ended.attempts <= 1) == ("cancelled", True)
    assert {one.attempt for one in starts(job)} == {1}


def test_a_permanent_error_buries_at_once(app, starts):
    job = app.enqueue("permanent", max_attempts=5)

    ended = job.wait(10)

    assert (ended.state, len(starts(job))) == ("buried", 1)
    assert "no such user" in ended.error["message"]


@pytest.mark.parametrize(
    ("handler", "payload", "expected"),
    [
        ("transient_only", {"kind": "timeout"}, 2),
        ("transient_only", {"kind": "connection"}, 2),
        ("transient_only", {"kind": "bug"}, 1),
        ("by_policy", {"text": "come again"}, 2),
        ("by_policy", {"text": "never"}, 1),
    ],
)
def test_the_retry_policy_decides_what_is_tried_again(app, starts, handler, payload, expected):
    job = app.enqueue(handler, payload, max_attempts=2, **QUICK)

    ended = job.wait(10)

    assert (ended.state, len(starts(job))) == ("buried", expected)


def test_a_list_of_seconds_is_waited_in_turn(app, starts):
    job = app.enqueue("steps", max_attempts=3, backoff=[0.3, 0.6])

    job.wait(10)
    first, second, third = (one.at for one in starts(job))

    assert second - first >= 0.3
    assert third - second >= 0.6
    assert [event["delay_s"] for event in events(job, "retried")] == [0.3, 0.6]


def test_a_buried_job_that_is_retried_much_later_runs_again(app, conn_shared, starts):
    job = app.enqueue("fail", max_attempts=1)
    job.wait(10)
    # As if buried long ago: nothing may judge it by its old times.
    conn_shared.execute(
        "UPDATE queuety.buried_jobs SET started_at = '2001-01-01', finished_at = '2001-01-01', "
        "created_at = '2001-01-01', available_at = '2001-01-01' WHERE id = %s",
        [job.id],
    )

    app.retry(job.id)
    app.recover()

    until(lambda: len(starts(job)) == 2)
    assert job.wait(10).state == "buried"


def test_a_retry_by_hand_gives_a_fresh_budget_again_and_again_and_keeps_the_history(app, starts):
    job = app.enqueue("fail", {"message": "first life"}, max_attempts=3, **QUICK)
    job.wait(10)

    def lived(life: int) -> bool:
        return len(starts(job)) == 3 * life and job.state() == "buried"

    for life in (2, 3):
        app.retry(job.id)
        until(partial(lived, life), what=f"life {life}")

    assert [one.attempt for one in starts(job)] == [1, 2, 3] * 3
    assert job.job().attempts == 3
    errors = [event["error"]["message"] for event in events(job, "retried")]
    assert len(errors) == 6
    assert len(events(job, "buried")) == 3


def test_arguments_that_do_not_fit_show_their_error_from_the_first_attempt_on(app, starts):
    # By name, from a caller that does not have the handler.
    job = app.enqueue("two", {"first": 1}, max_attempts=3, backoff=[0.4])

    until(lambda: events(job, "retried"), what="the first attempt's error")
    first = events(job, "retried")[0]["error"]
    ended = job.wait(10)

    assert first["type"] == "TypeError"
    assert "second" in first["message"]
    assert (ended.state, ended.attempts) == ("buried", 3)
    assert "second" in ended.error["message"]


# ── handlers that are not there ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    [
        "no.such.handler",
        "tests.apps.data:log",
        "os.system",
        "builtins.eval",
        "a:b",
        "Context",
        "ok2",
        "__init__",
    ],
)
def test_a_name_that_is_not_registered_is_never_called_and_buried_with_its_name(app, pool, name):
    before = sorted(one.pid for one in pool.workers())
    job = app.enqueue(name, max_attempts=2)
    after = app.enqueue("ok")

    ended = job.wait(10)

    assert (ended.state, ended.error["type"]) == ("buried", "UnknownHandler")
    assert name in ended.error["message"]
    assert after.wait(10).state == "completed"
    assert sorted(one.pid for one in pool.workers()) == before


def test_a_handler_name_that_no_door_lets_in_does_no_harm_in_the_table(app, conn_shared, pool):
    before = sorted(one.pid for one in pool.workers())
    names = ["", " ", "a b", "%s", "o'hara", "한글 \U0001f600", "x" * 5000, "new\nline"]
    ids = [
        conn_shared.execute("INSERT INTO queuety.jobs (handler) VALUES (%s) RETURNING id", [name]).fetchone()[
            0
        ]
        for name in names
    ]

    ended = [JobHandle(app, one).wait(10) for one in ids]

    assert {job.state for job in ended} == {"buried"}
    assert sorted(one.pid for one in pool.workers()) == before


# ── handlers that leave ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("handler", "payload", "words"),
    [
        ("exit_with", {"code": 0}, "SystemExit"),
        ("exit_with", {"code": 1}, "SystemExit"),
        ("exit_with", {"code": "text"}, "SystemExit"),
        ("quit_now", {}, "SystemExit"),
        ("leave", {"code": 0}, "exit code 0"),
        ("leave", {"code": 3}, "exit code 3"),
        ("kill_self", {"number": 9}, "signal 9"),
        ("segfault", {}, "signal 11"),
    ],
)
def test_leaving_is_a_failed_attempt_and_the_jobs_behind_run(app, starts, handler, payload, words):
    job = app.enqueue(handler, payload, max_attempts=2, **QUICK)
    behind = [app.enqueue("ok") for _ in range(5)]

    ended = job.wait(15)

    assert (ended.state, ended.attempts, len(starts(job))) == ("buried", 2, 2)
    assert words in f"{ended.error['type']} {ended.error['message']}"
    assert {one.wait(10).state for one in behind} == {"completed"}


# ── what the log tells ────────────────────────────────────────────────────────────────────────────


def test_every_failed_attempt_is_one_line_in_the_log(app, pool):
    job = app.enqueue("fail", {"message": "a reason\nof two lines"}, max_attempts=3, **QUICK)
    job.wait(10)

    lines = until(
        lambda: (
            len(found := [line for line in pool.log().splitlines() if f"job {job.id} " in line]) == 3
            and found
        )
    )

    assert [re.search(r"attempt (\d) of 3", line)[1] for line in lines] == ["1", "2", "3"]  # type: ignore[index]
    assert all("next in 0.1 s" in line for line in lines[:2])
    assert "buried" in lines[2]
    assert all("fail" in line and "a reason of two lines" in line for line in lines)


# ── handles ───────────────────────────────────────────────────────────────────────────────────────


def test_a_handle_waits_for_the_result(app):
    assert app.enqueue("echo", {"value": {"a": [1, None, "한글"]}}).result(10) == {"a": [1, None, "한글"]}


def test_a_handle_tells_the_stored_error_of_a_job_that_was_given_up(app):
    job = app.enqueue("fail", {"message": "this is why"}, max_attempts=1)

    with pytest.raises(JobFailed, match="this is why") as failed:
        job.result(10)

    assert failed.value.error is not None
    assert failed.value.error["type"] == "ValueError"
    assert "on purpose" not in failed.value.error["traceback"]


def test_a_handle_gives_up_waiting_after_its_time(app):
    job = app.enqueue("ok", delay=60)

    with pytest.raises(WaitTimeout, match="pending"):
        job.wait(0.2)
    cancel(job)


def cancel(job: JobHandle) -> Any:
    job.cancel()
    return job.wait(10)
