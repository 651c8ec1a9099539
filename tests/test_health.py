"""`why` and `doctor`: what keeps a job, and what is wrong with an installation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuety import Queuety
from queuety.features import schedules
from queuety.features.doctor import Check, Level
from queuety.features.why import Reason
from queuety.model import NewJob, NewSchedule
from queuety.policy.profile import CLASSES
from queuety.store import claims, profiles, workers
from queuety.store.claims import Budgets, Want
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes
from queuety.store.profiles import Taken
from tests import ROOT
from tests.daemon import daemon, until

MB = 1 << 20
POOL = {
    "limit": 0, "base": 40 * MB, "headroom": 16 * MB, "system_headroom": 128 * MB, "admission": True, "aware": True,
    "window_s": 3600, "available": 300 * MB, "most": 400 * MB, "system_limit": 512 * MB, "source": "cgroup v2",
    "pressure": {"some": 0.0, "full": 0.0}, "kills": 0,
}  # fmt: skip


@pytest.fixture
def app(database):
    with_url = Queuety(database)
    yield with_url
    with_url.close()


@pytest.fixture
def why(app) -> Callable[[Any], list[Reason]]:
    return lambda job: list(app.why(job.id).reasons)


@pytest.fixture
def run(database):
    def run(*arguments: str, url: str = database) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "queuety.cli.main", "--database-url", url, *arguments],
            capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        )  # fmt: skip

    return run


def pool(
    conn: Connection, handlers: Sequence[str] = ("ok",), queues: Sequence[str] = ("default",), **memory: Any
) -> None:
    """A pool that shows life: a keeper and a worker."""
    keeper = workers.register(conn, "keeper", "box", queues, None, 1)
    workers.tell(conn, keeper, json.dumps({**POOL, **memory}))
    workers.register(conn, "worker", "box", queues, handlers, 1)


def park(conn: Connection, job: Any, key: str) -> None:
    conn.execute("UPDATE queuety.jobs SET parked_on = %s, parked_at = now() WHERE id = %s", [key, job.id])


def taught(conn: Connection, handler: str, mb: int) -> None:
    profiles.add(conn, [Taken(handler, 1, 1.0, [1, *[0] * (CLASSES - 1)], mb * MB, mb * MB)])


def kinds(reasons: list[Reason]) -> list[str]:
    return [reason.kind for reason in reasons]


# ── why ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_nobody_serves_says_so(app, conn, why):
    job = app.enqueue("ok", queue="mail")
    pool(conn, queues=("default",))

    [reason] = why(job)

    assert reason.kind == "no_worker"
    assert reason.text == "no live worker serves its queue mail; 1 serve others"


def test_a_job_that_is_due_later_says_when(app, conn, why):
    pool(conn)

    [reason] = why(app.enqueue("ok", delay=3600))

    assert reason.kind == "later"
    assert reason.text.startswith("it is due in 60 min, at 2")


def test_a_job_of_a_paused_queue_says_since_when_and_why(app, conn, why):
    pool(conn)
    job = app.enqueue("ok")
    app.pause("default", reason="moving house", until=datetime.now(UTC) + timedelta(hours=1))

    [reason] = why(job)

    assert reason.kind == "paused"
    assert reason.text.startswith("its queue default is paused until 2")
    assert reason.text.endswith(": moving house")


def test_a_job_says_how_many_stand_before_it(app, conn, why):
    pool(conn)
    first = app.enqueue("ok")
    urgent = [app.enqueue("ok", priority="urgent") for _ in range(3)]
    job = app.enqueue("ok")
    app.enqueue("ok")
    app.enqueue("ok", delay=60)

    [behind], [next_] = why(job), why(urgent[0])

    assert (behind.kind, behind.figures["ahead"]) == ("behind", 4)
    assert (
        behind.text
        == "4 due jobs of its queue come before it; 1 workers serve the queue, 0 workers hold jobs"
    )
    assert next_.kind == "next"
    assert why(first)[0].figures["ahead"] == 3


def test_a_job_whose_handler_no_worker_has_says_so_parked_or_not(app, conn, why):
    pool(conn, handlers=["other"])
    job = app.enqueue("ok")

    assert kinds(why(job)) == ["no_handler"]

    park(conn, job, "handler:ok")
    [reason] = why(job)
    assert reason.kind == "handler"
    assert "no live worker of its queue has that" in reason.text


def test_a_job_that_waits_for_memory_says_how_much_there_is(app, conn, why):
    pool(conn)
    taught(conn, "ok", 200)
    job = app.enqueue("ok")
    park(conn, job, "memory:ok")

    [reason] = why(job)

    assert reason.kind == "memory"
    assert not reason.figures["nowhere"]
    assert reason.figures["peak"] == 200 * MB
    assert "ok takes up to 200 MB" in reason.text
    assert "pool box: it takes 200 MB, and 300 MB are to be had here with 128 MB kept free" in reason.text


def test_a_job_that_fits_nowhere_says_so_of_each_pool(app, conn, why):
    pool(conn)
    pool(conn, limit=100 * MB)
    taught(conn, "ok", 900)
    job = app.enqueue("ok")
    park(conn, job, "memory:ok")

    [reason] = why(job)

    assert reason.figures["nowhere"]
    assert "fits in no living pool" in reason.text
    assert "400 MB are to be had here with 128 MB kept free (cgroup v2)" in reason.text
    assert "the worker's limit is 100 MB" in reason.text


def limited(app: Queuety, **limits: Any) -> Any:
    return app.enqueue("ok", **limits)


def claimed(conn: Connection, size: int = 10, **budgets: dict[str, int]) -> None:
    """Claim what there is room for; the rest is parked."""
    want = Want(Lanes(("default",)), size, "box#7", 60.0, budgets=Budgets(**budgets))
    claims.turn(conn, None, want)


def test_a_job_of_a_full_group_says_how_many_run_and_may(app, conn, why):
    pool(conn)
    limited(app, concurrency_group="tenant:42", concurrency_limit=1)
    claimed(conn)
    second = limited(app, concurrency_group="tenant:42", concurrency_limit=1)
    job = limited(app, concurrency_group="tenant:42", concurrency_limit=1)
    claimed(conn)

    [reason] = why(job)

    assert app.find(second.id).parked_on == "group:tenant:42"
    assert reason.kind == "group"
    assert "its group tenant:42 has 1 runs, and 1 may run at a time" in reason.text
    assert "with 1 of its queue before it" in reason.text


def test_a_job_under_a_rate_says_when_the_next_start_is(app, conn, why):
    pool(conn)
    limited(app, rate_limit=(1, 60), rate_key="api")
    claimed(conn)
    job = limited(app, rate_limit=(1, 60), rate_key="api")
    claimed(conn)

    [reason] = why(job)

    assert reason.kind == "rate"
    assert reason.text.startswith("its rate api allows 1 starts in 60 s, and has had 1; the next one in ")
    assert 0 < reason.figures["next_s"] <= 121


def test_a_job_over_the_budget_of_its_queue_says_what_is_in_use(app, database, conn):
    pool(conn)
    own = Queuety(database, resource_queue_cost_budgets='{"default": 5}')
    first, second, third = (limited(own, cost_units=cost) for cost in (4, 3, 9))
    claimed(conn, size=1, queues={"default": 5})
    claimed(conn, queues={"default": 5})

    [waits], [never] = own.why(second.id).reasons, own.why(third.id).reasons

    assert own.find(first.id).state == "processing"
    assert waits.text.startswith("its queue default has 4 cost units in use of 5, it costs 3; it waits for")
    assert never.text == "it can never run: it costs 9, and the whole budget of its queue default is 5"
    [check] = [one for one in own.doctor() if one.name == "parked" and one.level is Level.FAIL]
    assert "queue default" in check.text
    own.close()


def test_every_reason_is_told_and_not_the_first_alone(app, conn, why):
    job = app.enqueue("ok", delay=60)
    app.pause("default")

    assert kinds(why(job)) == ["paused", "later", "no_worker"]


def test_a_running_job_says_who_has_it(app, conn, why):
    job = app.enqueue("ok")
    claims.turn(conn, None, Want(Lanes(("default",)), 1, "box#7", 60.0))

    [reason] = why(job)

    assert reason.kind == "running"
    assert "worker box#7 has it since 0.0 s, attempt 1 of 3" in reason.text


def test_a_job_whose_lease_ran_out_says_that_nobody_recovers_it(app, conn, why):
    job = app.enqueue("ok")
    claims.turn(conn, None, Want(Lanes(("default",)), 1, "box#7", 60.0))
    conn.execute("UPDATE queuety.jobs SET lease_until = now() - interval '5 min'")

    [reason] = why(job)

    assert reason.kind == "stranded"
    assert "`queuety recover` does" in reason.text


def test_a_job_that_has_ended_says_how(app, conn, why):
    buried, cancelled = app.enqueue("ok"), app.enqueue("ok")
    app.bury(buried.id, "no such user")
    app.cancel(cancelled.id)

    assert why(buried)[0].text.endswith("no such user")
    assert kinds(why(cancelled)) == ["cancelled"]


def test_why_of_the_command_line(app, run):
    job = app.enqueue("ok")

    said, told, unknown = run("why", str(job.id)), run("why", str(job.id), "--json"), run("why", "4711")

    assert (
        said.stdout
        == f"job {job.id} is pending: no live worker serves its queue default; no worker is alive at all\n"
    )
    value = json.loads(told.stdout)
    assert (value["id"], value["state"]) == (job.id, "pending")
    assert value["reasons"][0]["kind"] == "no_worker"
    assert (unknown.returncode, unknown.stdout) == (5, "")


# ── doctor ────────────────────────────────────────────────────────────────────────────────────────────


def found(app: Queuety, name: str, level: Level | None = None) -> list[Check]:
    return [one for one in app.doctor() if one.name == name and level in (None, one.level)]


def test_a_healthy_installation_has_nothing_that_failed(app, conn):
    pool(conn)
    conn.execute("SELECT queuety.make_partitions(7)")

    checks = app.doctor()

    names = {check.name for check in checks}
    assert {
        "database",
        "schema",
        "rights",
        "server",
        "connections",
        "partitions",
        "leases",
        "workers",
        "queues",
    } <= names
    assert [check for check in checks if check.level is Level.FAIL] == []


def test_a_database_that_is_away_is_a_failed_check_and_no_crash(run):
    done = run("doctor", "--json", url="postgresql://nobody@127.0.0.1:9/none")

    assert done.returncode == 8
    value = json.loads(done.stdout)
    assert not value["ok"]
    assert [(one["name"], one["level"]) for one in value["checks"]] == [("database", "fail")]


def test_a_missing_schema_is_told_with_the_way_out(empty):
    app = Queuety(empty)

    [check] = found(app, "schema")

    assert check.level is Level.FAIL
    assert "queuety db migrate" in check.text
    app.close()


def test_a_missing_right_is_told(database, login, app):
    poor = Queuety(login("poor"))

    assert [check.level for check in poor.doctor()][-1] is Level.FAIL
    poor.close()


def test_settings_of_the_server_that_hurt_are_told(app):
    [check] = [one for one in found(app, "server", Level.WARN) if one.figures.get("setting") == "fsync"]

    assert check.text == "fsync is off: a crash of the server may destroy the database"


def test_a_queue_with_due_jobs_that_nobody_serves_fails_after_a_while(app, conn):
    pool(conn)
    app.enqueue("ok", queue="mail")

    assert [one.figures["queue"] for one in found(app, "queues", Level.WARN)] == ["mail"]

    conn.execute("UPDATE queuety.jobs SET available_at = now() - interval '2 min'")
    [check] = found(app, "queues", Level.FAIL)
    assert check.text.startswith("mail: 1 job due, the oldest for 2 min, and no live worker serves it")


@pytest.mark.parametrize("key", ["memory:ok", "handler:ok", "group:shop"])
def test_a_queue_with_parked_jobs_alone_that_nobody_serves_is_told_too(app, conn, key):
    pool(conn)
    park(conn, app.enqueue("ok", queue="mail"), key)

    assert [one.figures["queue"] for one in found(app, "queues", Level.WARN)] == ["mail"]

    conn.execute("UPDATE queuety.jobs SET available_at = now() - interval '2 min'")
    [check] = found(app, "queues", Level.FAIL)
    assert check.text.startswith("mail: 1 job parked, the oldest for 2 min, and no live worker serves it")


def test_a_paused_queue_with_parked_jobs_is_no_finding(app, conn):
    park(conn, app.enqueue("ok", queue="mail"), "group:shop")
    app.pause("mail")

    assert [one.level for one in found(app, "queues")] == [Level.OK]


def test_jobs_that_wait_for_memory_are_told_when_no_pool_lives(app, conn):
    taught(conn, "ok", 200)
    for queue in ("on", "off"):
        park(conn, app.enqueue("ok", queue=queue), "memory:ok")

    [check] = found(app, "parked", Level.WARN)

    assert check.text == "2 jobs of ok parked for want of memory, and no living pool works off, on"


def test_leases_that_ran_out_and_are_not_recovered_fail(app, conn):
    app.enqueue("ok")
    claims.turn(conn, None, Want(Lanes(("default",)), 1, "box#7", 60.0))
    conn.execute("UPDATE queuety.jobs SET lease_until = now() - interval '5 min'")

    [check] = found(app, "leases", Level.FAIL)

    assert "`queuety recover`" in check.text


def test_jobs_that_fit_nowhere_fail_with_figures(app, conn):
    pool(conn)
    taught(conn, "ok", 900)
    job = app.enqueue("ok")
    park(conn, job, "memory:ok")

    [check] = found(app, "parked", Level.FAIL)

    assert check.text.startswith(
        "no living pool has room for ok, which takes up to 900 MB (pool box: it takes"
    )
    assert check.text.endswith("1 job parked; give one more memory")


def test_jobs_that_wait_for_memory_that_there_will_be_are_no_finding(app, conn):
    pool(conn)
    taught(conn, "ok", 200)
    park(conn, app.enqueue("ok"), "memory:ok")

    assert [one.level for one in found(app, "parked")] == [Level.OK]


def test_jobs_that_wait_for_a_handler_that_nobody_has_are_told(app, conn):
    pool(conn, handlers=["other"])
    park(conn, app.enqueue("ok"), "handler:ok")

    [check] = found(app, "parked", Level.WARN)

    assert check.text == "no live worker of default has the handler ok; 1 job parked: deploy it"


def test_kills_and_pressure_of_a_pool_are_told(app, conn):
    pool(conn, kills=2, pressure={"some": 60.0, "full": 25.0}, available=50 * MB)

    texts = " ".join(one.text for one in found(app, "memory", Level.WARN))

    assert "has ended 2 processes" in texts
    assert "25 % of the last ten seconds" in texts
    assert "50 MB are left (cgroup v2)" in texts


def test_silent_processes_and_different_versions_are_told(app, conn):
    pool(conn)
    conn.execute(
        "UPDATE queuety.workers SET seen_at = now() - interval '5 min', version = '0.0.1' WHERE kind = 'keeper'"
    )
    conn.execute("UPDATE queuety.workers SET version = '0.0.2' WHERE kind = 'worker'")

    texts = " ".join(one.text for one in found(app, "workers", Level.WARN))

    assert "1 process shows no sign of life" in texts
    assert "0.0.2" in texts


def test_a_transaction_that_is_open_for_long_is_told(app, database, conn, monkeypatch):
    from queuety.features import doctor

    monkeypatch.setattr(doctor, "LONG_S", 0.0)
    with conn.transaction():
        conn.execute("SELECT 1")
        [check] = found(app, "transactions", Level.WARN)

    assert "end it" in check.text


def test_a_tick_that_nobody_runs_and_a_broken_schedule_fail(app, conn):
    def looks() -> list[Check]:
        return [check for check in app.doctor() if check.name == "schedules"]

    assert looks() == []
    schedules.add(conn, NewSchedule("nightly", NewJob("ok", "{}"), every_s=60.0))
    assert [check.level for check in looks()] == [Level.OK]

    conn.execute("UPDATE queuety.schedules SET next_at = now() - interval '5 minutes'")
    [late] = looks()
    schedules.pause(conn, "nightly")
    schedules.add(conn, NewSchedule("odd", NewJob("ok", "{}"), every_s=60.0))
    conn.execute("UPDATE queuety.schedules SET broken = 'no such zone' WHERE key = 'odd'")
    [broken] = looks()

    assert late.level is Level.FAIL
    assert "due for 5 min and nobody runs it" in late.text
    assert broken.level is Level.FAIL
    assert "odd is broken: no such zone" in broken.text


def test_doctor_of_the_command_line(app, conn, run):
    pool(conn)
    conn.execute("SELECT queuety.make_partitions(7)")

    done = run("doctor")

    assert done.returncode == 0, done.stdout
    assert "checks: 0 failed" in done.stdout
    assert done.stdout.splitlines()[1].split()[:2] == ["ok", "database"]


def test_a_pool_tells_what_it_has(database, app, conn, tmp_path):
    with daemon(database, "--max-memory=200MB", log=tmp_path / "log") as running:
        running.ready()
        told = until(
            lambda: conn.execute(
                "SELECT memory FROM queuety.workers WHERE kind = 'keeper' AND (memory ->> 'base')::bigint > 0"
            ).fetchone()
        )[0]

    assert told["limit"] == 200 * MB
    assert 10 * MB < told["base"] < 100 * MB
    assert told["available"] <= told["most"]
    assert told["source"] in ("host", "cgroup v1", "cgroup v2", "unknown")
