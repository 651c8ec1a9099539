"""The sample application does what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from queuety.demo import stream
from queuety.demo.application import DEFAULT, app, count, digest, send_mail
from queuety.features import schedules
from queuety.loading import bind
from queuety.model import Job, State
from queuety.settings import Settings
from tests.daemon import daemon

QUEUES = "--queue=demo-critical,demo-default,demo-low"
DEMO = "queuety.demo.application:app"


@pytest.fixture
def shop(database) -> Iterator[str]:
    """The sample application's database, prepared; the application speaks to it."""
    before = app.settings
    bind(app, Settings.load({"database_url": database}))
    stream.prepare()
    yield database
    app.close()
    bind(app, before)


def flush(url, tmp_path) -> str:
    with daemon(url, QUEUES, "--workers=2", app=DEMO, command="flush", log=tmp_path / "log") as pool:
        assert pool.wait(60) == 0, pool.log()
        return pool.log()


def ends(job: Job) -> tuple[State, int]:
    return job.state, job.attempts


def test_mail_goes_three_ways(shop, tmp_path):
    using = send_mail.using(backoff=[0])
    ok = using.enqueue("ada@example.org", "hello")
    flaky = using.enqueue("ada@example.org", "hello", course="flaky")
    fail = using.enqueue("ada@example.org", "hello", course="fail")

    flush(shop, tmp_path)

    assert ends(app.find(ok.id)) == (State.COMPLETED, 1)
    assert ends(app.find(flaky.id)) == (State.COMPLETED, 2)
    buried = app.find(fail.id)
    assert ends(buried) == (State.BURIED, 3)
    assert buried.error is not None
    assert buried.error["type"] == "ConnectionError"


def test_a_mail_of_another_course_is_buried_at_once_by_that_name(shop, tmp_path):
    handle = app.enqueue("send_mail", {"to": "ada@example.org", "subject": "x", "course": "scenic"})

    flush(shop, tmp_path)

    buried = app.find(handle.id)
    assert ends(buried) == (State.BURIED, 1)
    assert "scenic" in str(buried.error)


def test_the_counter_counts_by_schedule_and_by_hand_in_one_place(shop, tmp_path):
    with app.connection() as conn:
        schedules.sync(conn, app.declared, DEMO)
        schedules.run(conn, "counter")
    count.enqueue()
    count.enqueue()

    flush(shop, tmp_path)

    with app.connection() as conn:
        counts: dict[str, int] = dict(conn.execute("SELECT c.by, c.count FROM demo_counter AS c").fetchall())
    assert counts == {"schedule": 1, "hand": 2}


def test_the_hash_is_computed_on_a_cpu_pool(shop, tmp_path):
    handle = digest.enqueue("text", rounds=1000)

    flush(shop, tmp_path)

    assert re.fullmatch(r"[0-9a-f]{64}", str(handle.result()))


def test_a_round_of_the_stream_can_be_worked(shop, tmp_path):
    for round_ in range(1, 61):
        stream.write(round_)

    flush(shop, tmp_path)

    assert not [
        job for job in app.jobs(state="buried", limit=1000) if job.handler not in ("charge", "send_mail")
    ]
    assert app.jobs(state="completed", queue=DEFAULT)
