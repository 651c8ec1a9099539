"""Log lines for machines tell which run of which job they are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queuety import Queuety
from tests.daemon import daemon, until

APP = "tests.apps.talkative:app"
JSON = {"QUEUETY_LOG_FORMAT": "json"}


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def logged(database: str, tmp_path: Path, handler: str, **more: Any) -> tuple[int, list[dict[str, Any]]]:
    """The job's id, and all lines of a pool named `night` that has run it."""
    job = Queuety(database).enqueue(handler, {}, queue="mail", **more)
    with daemon(database, "--queue=mail", "--name=night", app=APP, log=tmp_path / "log", env=JSON) as pool:
        until(lambda: job.state() in ("completed", "buried"), what="an end")
        assert pool.stop() == 0
        return job.id, lines(pool.log())


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("talk", "from the handler"),
        ("talk_in_a_thread", "from its thread"),
        ("talk_later", "from a coroutine"),
    ],
)
def test_what_a_handler_logs_carries_its_job(database: str, tmp_path: Path, handler: str, message: str):
    job, found = logged(database, tmp_path, handler)

    [line] = [one for one in found if one["message"] == message]
    assert {key: line[key] for key in ("job", "handler", "queue", "attempt", "pool", "process")} == {
        "job": job,
        "handler": handler,
        "queue": "mail",
        "attempt": 1,
        "pool": "night",
        "process": "shop.mail",
    }
    assert line["worker"] > 0


def test_each_attempt_that_fails_is_one_line_with_its_job(database: str, tmp_path: Path):
    job, found = logged(database, tmp_path, "stumble", max_attempts=2, backoff=[0.05])

    told = [one for one in found if "event" in one]
    assert [(one["event"], one["attempt"], one["level"]) for one in told] == [
        ("retried", 1, "warning"),
        ("buried", 2, "error"),
    ]
    assert all(
        (one["job"], one["handler"], one["queue"], one["pool"]) == (job, "stumble", "mail", "night")
        for one in told
    )


def test_a_traceback_is_one_field(database: str, tmp_path: Path):
    job, found = logged(database, tmp_path, "stumble", max_attempts=1)

    [line] = [one for one in found if one["message"] == "with a traceback"]
    assert line["job"] == job
    assert line["exception"].startswith("Traceback")
    assert "ValueError: on purpose" in line["exception"]


def test_lines_about_no_job_carry_none(database: str, tmp_path: Path):
    _, found = logged(database, tmp_path, "talk")

    [line] = [one for one in found if one["message"].startswith("stopping")]
    assert line["pool"] == "night"
    assert not {"job", "handler", "attempt", "worker"} & set(line)


def test_what_a_dead_worker_ran_is_told_by_the_keeper_with_its_job(database: str, tmp_path: Path):
    job = Queuety(database).enqueue("leave", {}, max_attempts=1)
    with daemon(database, log=tmp_path / "log", env=JSON) as pool:
        until(lambda: job.state() == "buried", what="an end")
        assert pool.stop() == 0
        [line] = [one for one in lines(pool.log()) if one.get("event") == "buried"]

    assert (line["job"], line["handler"], line["process"]) == (job.id, "leave", "keeper")


def test_other_threads_of_a_caller_that_runs_jobs_itself_carry_no_job(database: str):
    from threading import Event, Thread

    from queuety.process import running

    app = Queuety(database)
    inside, seen, told = Event(), Event(), {}

    @app.job
    def wait() -> None:
        told["run"] = running.fields()
        inside.set()
        assert seen.wait(10)

    def look() -> None:
        assert inside.wait(10)
        told["other"] = running.fields()
        seen.set()

    thread = Thread(target=look)
    thread.start()
    job = wait.enqueue()
    app.worker().flush()
    thread.join()

    assert told["run"]["job"] == job.id
    assert "job" not in told["other"]
    assert "job" not in running.fields()
