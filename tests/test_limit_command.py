"""Limits as a person sets and sees them: `limit`, `queues`, `status`."""

from __future__ import annotations

import json

import pytest

from queuety import Queuety, UsageError
from queuety.errors import MeterNotFound
from queuety.store import claims
from queuety.store.claims import Budgets, Want
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes
from tests.test_cli import Run, one_line
from tests.test_cli import run as run
from tests.test_meters import app as app


def claim(conn: Connection, queue: str = "default", size: int = 1, budgets: Budgets | None = None) -> int:
    want = Want(Lanes((queue,)), size, f"w#{size}", 60.0, budgets=budgets or Budgets())
    return len(claims.turn(conn, None, want).jobs)


def test_a_limit_is_set_shown_and_forgotten(run: Run):
    text = run("limit", "group:tenant:42", "--concurrency=3", "--budget=10").stdout
    assert "3 at a time, budget 10 (set in the database)" in text

    run("limit", "group:tenant:42", "--concurrency=5")
    shown = json.loads(run("limit", "group:tenant:42", "--json").stdout)
    assert shown["limit"] == {"concurrency": 5, "budget": 10, "rate": None}
    assert shown["stored"]

    assert "is forgotten" in run("limit", "group:tenant:42", "--reset").stdout
    assert "nothing was set" in run("limit", "group:tenant:42", "--reset").stdout
    assert "no limit is set for group:tenant:42" in one_line(run("limit", "group:tenant:42", code=5))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tenant:42"], "'tenant:42' is no limited key"),
        (["group:"], "is empty"),
        (["queue:a b"], "cannot be used"),
        (["queue:mail", "--concurrency=2"], "queue:mail has no concurrency"),
        (["rate:mail", "--budget=2"], "rate:mail has no budget"),
        (["group:a", "--rate=5/1s"], "group:a has no rate"),
        (["group:a", "--concurrency=-1"], "--concurrency"),
        (["group:a", "--concurrency=1.5"], "--concurrency"),
        (["rate:a", "--rate=5"], "--rate"),
        (["rate:a", "--rate=0/1s"], "--rate"),
        (["rate:a", "--rate=5/0s"], "window"),
        (["group:a", "--concurrency=1", "--reset"], "exclude"),
    ],
)
def test_a_limit_that_makes_no_sense_ends_with_2_before_anything_is_written(
    run: Run, conn: Connection, arguments: list[str], said: str
):
    assert said in one_line(run("limit", *arguments, code=2))
    assert conn.execute("SELECT count(*) FROM queuety.meters").fetchone() == (0,)


def test_queues_and_status_show_every_key(run: Run, app: Queuety, conn: Connection):
    for _ in range(5):
        app.enqueue("work")
    for _ in range(4):
        app.enqueue("twice", queue="other")
    assert claim(conn) == 1
    conn.execute(
        "UPDATE queuety.jobs SET parked_at = now() - interval '90 s' WHERE parked_on = 'group:three'"
    )

    status = json.loads(run("status", "--json").stdout)
    queues = {row["name"]: row for row in json.loads(run("queues", "--json").stdout)}

    keys = {row["key"]: row for row in status["keys"]}
    assert keys["group:three"]["limit"]["concurrency"] == 3
    assert (keys["group:three"]["running"], keys["group:three"]["parked"]) == (1, 2)
    assert 89 < keys["group:three"]["oldest_parked_s"] < 120
    assert keys["rate:twice"]["limit"]["rate"] == {"starts": 2, "seconds": 1.0}
    assert [row["key"] for row in queues["default"]["keys"]] == ["group:three"]
    assert [row["key"] for row in queues["other"]["keys"]] == ["rate:twice"]
    assert "3 at a time" in run("queues").stdout
    assert "2 in 1 s" in run("status").stdout


def test_a_budget_of_the_settings_is_shown_and_the_stored_one_wins(run: Run, app: Queuety, conn: Connection):
    app.enqueue("costs")
    app.enqueue("costs", cost_units=4)
    budgets = Budgets({"costly": 4})
    claim(conn, "costly", 1, budgets)
    claim(conn, "costly", 2, budgets)

    shown = json.loads(
        run("limit", "queue:costly", "--json", QUEUETY_RESOURCE_QUEUE_COST_BUDGETS='{"costly": 4}').stdout
    )
    assert shown["limit"]["budget"] == 4
    assert (shown["running"], shown["cost"], shown["parked"], shown["stored"]) == (1, 1, 1, False)

    run("limit", "queue:costly", "--budget=9")
    assert claim(conn, "costly", 3, budgets) == 0
    claims.refill(conn, Lanes(("costly",)), budgets, places=500)
    assert claim(conn, "costly", 3, budgets) == 1


def test_enqueue_takes_limits(run: Run, conn: Connection):
    run("enqueue", "x", "--concurrency-limit=2", "--cost-units=3", "--rate-limit=5/1m", "--rate-key=t:1")
    line = '{"handler": "y", "concurrency_group": "g", "rate_limit": [5, 2]}'
    run("enqueue", "--many", "-", stdin=line)
    assert "--concurrency-limit" in one_line(run("enqueue", "x", "--concurrency-limit=0", code=2))
    assert "is no rate" in one_line(run("enqueue", "x", "--rate-limit=5", code=2))

    assert [row[0] for row in conn.execute("SELECT limits FROM queuety.jobs ORDER BY id")] == [
        {"group": "x", "concurrency": 2, "cost": 3, "rate_key": "t:1", "rate_count": 5, "rate_s": 60.0},
        {"group": "g", "rate_key": "y", "rate_count": 5, "rate_s": 2},
    ]


def test_a_new_budget_counts_what_runs_already(run: Run, app: Queuety, conn: Connection):
    for _ in range(3):
        app.enqueue("costs", cost_units=2)
    assert claim(conn, "costly", 1) == 1

    app.limit("queue:costly", budget=3)

    assert claim(conn, "costly", 2) == 0
    assert app.limit("queue:costly").cost == 2


def test_a_job_that_cost_too_much_is_looked_at_again_when_the_budget_grows(app: Queuety, conn: Connection):
    app.enqueue("costs", cost_units=8)
    app.limit("queue:costly", budget=3)
    assert claim(conn, "costly") == 0
    assert app.limit("queue:costly").never == 1

    app.limit("queue:costly", budget=8)

    assert claim(conn, "costly", 2) == 1


def test_python_sets_and_forgets_limits_too(app: Queuety):
    meter = app.limit("rate:mail", rate_limit=(100, 1))

    assert (meter.rate_count, meter.rate_s, meter.limit) == (100, 1.0, "100 in 1 s")
    assert [one.key for one in app.meters()] == ["rate:mail"]
    assert app.unlimit("rate:mail")
    assert not app.unlimit("rate:mail")
    with pytest.raises(MeterNotFound):
        app.limit("rate:mail")
    with pytest.raises(UsageError, match="no limited key"):
        app.limit("mail", concurrency=1)


@pytest.mark.parametrize("value", ["[1]", '{"a b": 1}', '{"a": -1}', '{"a": 1.5}', "{", "5"])
def test_a_budget_setting_that_makes_no_sense_is_refused_before_any_fork(run: Run, value: str):
    done = run("work", "--once", code=2, QUEUETY_RESOURCE_QUEUE_COST_BUDGETS=value)

    assert "resource_queue_cost_budgets" in one_line(done)
