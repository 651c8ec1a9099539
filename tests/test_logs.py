"""Log lines for machines tell which run of which job they are about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queuety import Queuety
from tests import ROOT
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


def test_a_message_that_cannot_be_formatted_is_a_line_that_says_so(database: str, tmp_path: Path):
    job, found = logged(database, tmp_path, "mutter")

    told = [
        one["message"] for one in found if one.get("job") == job and "cannot be formatted" in one["message"]
    ]
    assert len(told) == 2
    assert "(talkative.py, line " in told[0]
    assert "'bad %s %s': TypeError: not enough arguments" in told[0]
    assert "'mute %s': RuntimeError: no text" in told[1]


def test_it_is_a_line_for_people_too(database: str, tmp_path: Path):
    job = Queuety(database).enqueue("mutter", {})
    with daemon(database, app=APP, log=tmp_path / "log") as pool:
        until(lambda: job.state() == "completed", what="an end")
        assert pool.log().count("cannot be formatted") == 2
        assert pool.log().count("with fields") == 1


def test_signs_that_are_none_are_replaced(database: str, tmp_path: Path):
    _, found = logged(database, tmp_path, "mutter")

    assert [one["message"] for one in found if one["message"].startswith("half")] == ["half a sign: \ufffd"]


def test_fields_that_a_handler_adds_are_carried_under_no_name_of_ours(database: str, tmp_path: Path):
    job, found = logged(database, tmp_path, "mutter")

    [line] = [one for one in found if one["message"] == "with fields"]
    assert line["job"] == job
    assert line["extra_job"] == "not ours"
    assert line["order"] == 7
    assert line["cart"] == {"sum": 1.5, "signs": "\ufffd"}
    assert line["mute"] == "<Mute: its text cannot be had, RuntimeError>"
    assert line["nan"] == "nan"
    assert line["long"].endswith("… [100,000 characters]")
    assert len(line["long"]) <= 2000
    assert line["db_password"] == "***"
    assert line["stack"].startswith("Stack (most recent call last)")


def test_warnings_threads_and_what_is_printed_do_not_spoil_the_lines(database: str, tmp_path: Path):
    job = Queuety(database).enqueue("mutter_aside", {})
    with daemon(database, app=APP, log=tmp_path / "log", env=JSON) as pool:
        until(lambda: job.state() == "completed", what="an end")
        assert pool.stop() == 0
        written = pool.log().splitlines()

    found = [json.loads(line) for line in written if line != "no end of line"]
    assert len(found) == len(written) - 1
    mine = {one["process"]: one for one in found if one.get("job") == job.id}
    assert "UserWarning: an old way" in mine["py.warnings"]["message"]
    assert mine["thread"]["message"] == "thread aside ended by an error: IndexError"
    assert "IndexError: list index out of range" in mine["thread"]["exception"]
    assert mine["shop.mail"]["message"] == "done"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--app=no.such:app", "work"], "there is no module"),
        (["--app=no.such:app", "work", "--workers=none"], "--workers"),
        (["work"], "no application is named"),
    ],
)
def test_an_error_at_the_start_is_a_line_for_machines_too(
    database: str, tmp_path: Path, arguments: list[str], said: str
):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "queuety.cli.main",
            "--log-format=json",
            f"--database-url={database}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode
    [line] = lines(done.stderr)
    assert said in line["message"]
    assert (line["level"], line["process"]) == ("error", "cli")


def test_an_application_that_configures_logging_by_default_does_not_silence_ours(
    database: str, tmp_path: Path
):
    job = Queuety(database).enqueue("stumble", {}, max_attempts=1)
    env = {**JSON, "QUEUETY_TEST_DICT_CONFIG": "1"}
    with daemon(database, app=APP, log=tmp_path / "log", env=env) as pool:
        until(lambda: job.state() == "buried", what="an end")
        assert pool.stop() == 0
        told = [one for one in lines(pool.log()) if one.get("event") == "buried"]

    assert [(one["job"], one["process"]) for one in told] == [(job.id, "worker")]


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
