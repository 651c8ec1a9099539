"""Limits that hold: groups, budgets and rates, over any number of workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from queuety import Queuety, UsageError
from queuety.limits import of_handlers
from queuety.model import Again, Complete, ErrorInfo, Limits
from queuety.store import claims, retention
from queuety.store.batch import Batch
from queuety.store.claims import Budgets, Claimed, Turn, Want
from queuety.store.connect import Connection, connect
from queuety.store.lanes import Lanes
from tests.apps.limited import app as limited

OK = Complete()


@pytest.fixture
def app(database: str) -> Queuety:
    own = Queuety(database)
    for name, handler in limited.handlers.items():
        own._handlers[name] = type(handler)(own, handler.function, name, handler.options)
    return own


class Worker:
    """A worker's hands on the database, one turn at a time."""

    def __init__(self, url: str, number: int, queues: tuple[str, ...] = ("default",), **want: Any) -> None:
        self.conn = connect(url)
        self.lanes = Lanes(queues)
        self.name = f"host#{number}"
        self.want = want
        self.jobs: list[Claimed] = []

    def turn(self, size: int = 1, outcome: Any = OK) -> Turn:
        batch = None
        if self.jobs:
            batch = Batch(self.jobs[0].lease)
            batch.freed = {key for job in self.jobs for key in job.keys}
            for job in self.jobs:
                batch.add(job.id, outcome)
        self.lanes.rewind()
        done = claims.turn(self.conn, batch, Want(self.lanes, size, self.name, 60.0, **self.want))
        self.jobs = done.jobs
        return done


@pytest.fixture
def worker(database: str) -> Callable[..., Worker]:
    made: list[Worker] = []

    def make(*given: Any, **more: Any) -> Worker:
        made.append(Worker(database, len(made), *given, **more))
        return made[-1]

    return make


def parked(conn: Connection) -> dict[str, int]:
    rows = conn.execute(
        "SELECT parked_on, count(*) FROM queuety.jobs WHERE parked_on IS NOT NULL GROUP BY 1"
    ).fetchall()
    return dict(rows)


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_runs_no_more_than_its_limit(app: Queuety, worker: Callable[..., Worker], conn: Connection):
    for _ in range(10):
        app.enqueue("work")
    workers = [worker() for _ in range(5)]

    held = [len(one.turn().jobs) for one in workers]

    assert held == [1, 1, 1, 0, 0]
    assert parked(conn) == {"group:three": 7}
    assert conn.execute("SELECT DISTINCT attempts FROM queuety.jobs WHERE state = 'pending'").fetchall() == [
        (0,)
    ]


def test_the_next_in_line_takes_the_place_in_the_turn_that_frees_it(
    app: Queuety, worker: Callable[..., Worker]
):
    ids = [app.enqueue("work").id for _ in range(8)]
    workers = [worker() for _ in range(3)]
    order = [one.turn().jobs[0].id for one in workers]

    for _ in range(5):
        order.append(workers[len(order) % 3].turn().jobs[0].id)

    assert order == ids


def test_a_batch_takes_one_place_since_one_worker_runs_it(app: Queuety, worker: Callable[..., Worker]):
    app.enqueue_many([("work", {})] * 100)
    first, second, third, fourth = (worker() for _ in range(4))
    first.turn(50)
    first.turn(50)

    assert len(first.jobs) == 50
    claims.refill(fourth.conn, fourth.lanes, Budgets(), places=500)
    assert [len(one.turn().jobs) for one in (second, third, fourth)] == [1, 1, 0]


@pytest.mark.parametrize("sizes", [1, 4])
def test_workers_that_claim_at_once_never_exceed_it(
    database: str, app: Queuety, worker: Callable[..., Worker], conn: Connection, sizes: int
):
    app.enqueue_many([("work", {})] * 300)
    workers = [worker() for _ in range(8)]
    over: list[int] = []
    done = 0
    lock = threading.Lock()
    running: set[str] = set()

    def run(one: Worker) -> None:
        nonlocal done
        idle = 0
        while idle < 30:
            jobs = one.turn(sizes).jobs
            with lock:
                if jobs:
                    running.add(one.name)
                over.append(len(running))
            idle = 0 if jobs else idle + 1
            with lock:
                running.discard(one.name)
                done += len(jobs)

    threads = [threading.Thread(target=run, args=[one]) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(over) <= 3
    assert done == 300
    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)


def test_a_bulk_call_parks_what_has_no_room_at_once(app: Queuety, conn: Connection):
    app.enqueue_many([("work", {})] * 1000)

    assert parked(conn) == {"group:three": 997}


def test_a_group_and_a_rate_without_a_name_have_the_handlers(app: Queuety, conn: Connection):
    app.enqueue("ends", {"how": "return"})
    app.enqueue("twice")

    found = [Limits(**row[0]) for row in conn.execute("SELECT limits FROM queuety.jobs ORDER BY id")]
    assert found == [
        Limits(group="ends", concurrency=2),
        Limits(rate_key="twice", rate_count=2, rate_s=1.0),
    ]


def test_limits_of_one_job_win_over_the_handlers(app: Queuety, conn: Connection):
    app.handlers["work"].using(concurrency_group="tenant:42", concurrency_limit=1, cost_units=5).enqueue()

    assert conn.execute("SELECT limits FROM queuety.jobs").fetchone() == (
        {"group": "tenant:42", "concurrency": 1, "cost": 5},
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency_group", "a b"),
        ("concurrency_group", ""),
        ("concurrency_limit", 0),
        ("concurrency_limit", True),
        ("concurrency_limit", 1.5),
        ("cost_units", -1),
        ("cost_units", "2"),
        ("rate_limit", 5),
        ("rate_limit", "5/s"),
        ("rate_limit", (0, 1)),
        ("rate_limit", (1, 0)),
        ("rate_limit", (1, float("nan"))),
        ("rate_limit", (1, 2, 3)),
        ("rate_key", "*"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_at_the_call(app: Queuety, option: str, value: Any):
    with pytest.raises(UsageError, match=f"{option}|window"):
        app.enqueue("free", **{option: value})
    with pytest.raises(UsageError):
        Queuety("postgresql://nowhere").job(**{option: value})(lambda: None)


def test_a_job_that_fails_keeps_its_limits_and_frees_its_place(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    for _ in range(4):
        app.enqueue("ends", {"how": "raise"})
    first, second = worker(), worker()
    first.turn(), second.turn()

    first.turn(outcome=Again(60.0, counted=True, error=ErrorInfo("E", "m"), cause="retried"))

    assert len(first.jobs) == 1
    assert parked(conn) == {"group:ends": 1}
    assert conn.execute("SELECT count(*) FROM queuety.jobs WHERE limits ->> 'group' = 'ends'").fetchone() == (
        4,
    )


@pytest.mark.parametrize("end", ["buried", "cancelled"])
def test_a_job_sent_back_has_its_limits(app: Queuety, conn: Connection, end: str):
    job = app.enqueue("work")
    app.bury(job.id) if end == "buried" else app.cancel(job.id)

    app.retry(job.id)

    assert conn.execute("SELECT limits ->> 'group' FROM queuety.jobs").fetchone() == ("three",)


# ── other jobs ────────────────────────────────────────────────────────────────────────────────────


def test_what_waits_for_a_key_holds_up_nothing_else(app: Queuety, worker: Callable[..., Worker]):
    for _ in range(20):
        app.enqueue("work")
    free = app.enqueue("free").id
    for one in (worker(), worker(), worker()):
        one.turn()

    fourth = worker()

    assert fourth.turn().jobs == [] or fourth.jobs[0].id == free
    if not fourth.jobs:
        fourth.turn()
    assert [job.id for job in fourth.jobs] == [free]


def test_a_paused_queue_keeps_no_place_of_a_group(app: Queuety, worker: Callable[..., Worker]):
    stuck = [app.enqueue("work", queue="stuck").id for _ in range(5)]
    app.pause("stuck")
    moving = [app.enqueue("work").id for _ in range(5)]
    workers = [worker(("stuck", "default")) for _ in range(3)]

    claims.refill(workers[0].conn, workers[0].lanes, Budgets(), places=500)
    got = [job.id for one in workers for job in one.turn().jobs]

    assert got == moving[:3]
    assert stuck


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_runs_no_more_than_its_budget(app: Queuety, worker: Callable[..., Worker], conn: Connection):
    for cost in (3, 3, 3, 1, 1):
        app.enqueue("costs", queue="costly", cost_units=cost)
    workers = [worker(("costly",), budgets=Budgets({"costly": 7})) for _ in range(5)]

    held = [len(one.turn().jobs) for one in workers]

    assert held == [1, 1, 0, 0, 0]  # the small ones do not pass the third
    assert parked(conn) == {"queue:costly": 3}
    workers[0].turn()
    assert len(workers[0].jobs) == 1
    claims.refill(conn, Lanes(("costly",)), Budgets({"costly": 7}), places=500)
    assert [len(one.turn().jobs) for one in workers[2:]] == [1, 0, 0]  # 3 + 3 + 1


def test_a_group_runs_no_more_than_its_budget(app: Queuety, worker: Callable[..., Worker]):
    for cost in (5, 5, 5):
        app.enqueue("costs", concurrency_group="g", cost_units=cost)
    workers = [worker(("costly",), budgets=Budgets({}, {"g": 12})) for _ in range(3)]

    assert [len(one.turn().jobs) for one in workers] == [1, 1, 0]


def test_a_job_that_costs_more_than_the_budget_is_set_apart(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    app.enqueue("costs", cost_units=8)
    small = app.enqueue("costs", cost_units=2).id
    one = worker(("costly",), budgets=Budgets({"costly": 7}))

    one.turn()
    if not one.jobs:
        one.turn()

    assert [job.id for job in one.jobs] == [small]
    assert parked(conn) == {"never:queue:costly": 1}


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_start_than_the_rate_allows(app: Queuety, worker: Callable[..., Worker], conn: Connection):
    for _ in range(5):
        app.enqueue("twice")
    one = worker(guard_s=0.05)

    assert [len(one.turn().jobs) for _ in range(4)] == [1, 1, 0, 0]
    assert parked(conn) == {"rate:twice": 3}

    unparked, next_s, _ = claims.refill(conn, Lanes(("default",)), Budgets(), places=500)
    assert unparked == 0
    assert next_s is not None
    assert 0.5 < next_s < 1.1


def test_a_start_that_did_not_happen_is_taken_back(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    for _ in range(3):
        app.enqueue("twice")
    one = worker(guard_s=0.05)
    job = one.turn().jobs[0]
    batch = Batch(job.lease)
    batch.given_back.append(job.id)
    batch.freed = {"rate:twice"}
    batch.unstarted += ["rate:twice"]

    claims.turn(one.conn, batch, None)

    assert conn.execute("SELECT sum(starts), min(begun_by) < now() FROM queuety.starts").fetchone() == (
        0,
        False,
    )


def test_a_start_counts_from_when_it_happened_once_that_is_known(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    app.enqueue("twice")
    one = worker(guard_s=30.0)
    job = one.turn().jobs[0]
    batch = Batch(job.lease)
    batch.add(job.id, OK)
    batch.freed = {"rate:twice"}
    batch.begun_s = time.monotonic() - 0.4

    claims.turn(one.conn, batch, None)

    row = conn.execute(
        "SELECT extract(EPOCH FROM clock_timestamp() - begun_by)::float8 FROM queuety.starts"
    ).fetchone()
    assert row is not None
    assert 0.3 < row[0] < 5


def test_starts_that_no_window_holds_any_more_are_forgotten(conn: Connection):
    conn.execute(
        "INSERT INTO queuety.starts VALUES ('rate:a', 1, now() - interval '2 days', 1), ('rate:a', 2, now(), 1)"
    )

    assert retention.prune_starts(conn) == 1
    assert conn.execute("SELECT lease FROM queuety.starts").fetchall() == [(2,)]


# ── what is stored ────────────────────────────────────────────────────────────────────────────────


def test_a_stored_limit_wins_and_may_change_while_workers_run(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    for _ in range(10):
        app.enqueue("work")
    workers = [worker() for _ in range(6)]
    assert sum(len(one.turn().jobs) for one in workers) == 3

    conn.execute("INSERT INTO queuety.meters (kind, name, concurrency) VALUES ('group', 'three', 5)")
    claims.refill(conn, Lanes(("default",)), Budgets(), places=500)
    more = sum(len(one.turn().jobs) for one in workers[3:])
    assert more == 2

    conn.execute("UPDATE queuety.meters SET concurrency = 0")
    assert sum(len(one.turn().jobs) for one in workers) == 0


def test_a_role_that_may_only_insert_may_write_limited_jobs(
    app: Queuety, conn: Connection, login: Callable[..., str]
):
    url = login("shop_web")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO shop_web")
    conn.execute("GRANT SELECT, INSERT ON queuety.jobs TO shop_web")
    conn.execute("GRANT SELECT ON queuety.sleepers TO shop_web")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO shop_web")
    web = Queuety(url)

    for _ in range(3):
        web.enqueue("work", concurrency_group="g", concurrency_limit=1, rate_limit=(1, 1))
    web.enqueue_many([("work", {})] * 3)

    assert parked(conn) == {"group:g": 2}


def test_the_database_function_takes_limits_too(conn: Connection):
    job = """{"handler": "h", "concurrency_group": "g", "concurrency_limit": 1, "cost_units": 2,
              "rate_key": "r", "rate_limit": [5, 1.5]}"""
    for _ in range(3):
        conn.execute("SELECT queuety.enqueue(%s)", [job])

    assert conn.execute("SELECT DISTINCT limits FROM queuety.jobs").fetchall() == [
        ({"group": "g", "concurrency": 1, "cost": 2, "rate_key": "r", "rate_count": 5, "rate_s": 1.5},)
    ]
    assert parked(conn) == {"group:g": 2}


@pytest.mark.parametrize(
    "bad",
    [
        '"concurrency_group": "a b"',
        '"concurrency_limit": 0',
        '"cost_units": 1.5',
        '"rate_limit": 5',
        '"rate_limit": [5]',
        '"rate_limit": [0, 1]',
        '"rate_limit": [5, 0]',
        '"rate_limit": [5, "1s"]',
    ],
)
def test_the_database_function_refuses_limits_that_make_no_sense(conn: Connection, bad: str):
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute("SELECT queuety.enqueue(%s)", ['{"handler": "h", ' + bad + "}"])


def test_jobs_written_by_somebody_who_does_not_know_the_handler_have_its_limits(
    database: str, conn: Connection, worker: Callable[..., Worker]
):
    stranger = Queuety(database)
    for _ in range(5):
        stranger.enqueue("work")
    known = of_handlers({name: handler.options.limits for name, handler in limited.handlers.items()})
    workers = [worker(limits=known) for _ in range(5)]

    assert [len(one.turn().jobs) for one in workers] == [1, 1, 1, 0, 0]
    assert parked(conn)["group:three"] >= 1


def test_handlers_without_limits_cost_their_claim_nothing():
    assert of_handlers({"free": Limits(), "cheap": Limits()}) is None


def test_what_cost_too_much_for_one_pool_is_run_by_another_with_a_larger_budget(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    job = app.enqueue("costs", cost_units=5).id
    small, large = Budgets({"costly": 2}), Budgets({"costly": 10})
    assert worker(("costly",), budgets=small).turn().jobs == []
    assert parked(conn) == {"never:queue:costly": 1}

    assert claims.refill(conn, Lanes(("costly",)), small, places=500)[0] == 0
    assert claims.refill(conn, Lanes(("costly",)), large, places=500)[0] == 1

    assert [one.id for one in worker(("costly",), budgets=large).turn().jobs] == [job]


def test_a_budget_of_nothing_stops_a_queue_and_sets_nothing_apart(
    app: Queuety, worker: Callable[..., Worker], conn: Connection
):
    app.enqueue("costs")
    app.limit("queue:costly", budget=0)

    assert worker(("costly",)).turn().jobs == []
    assert parked(conn) == {"queue:costly": 1}
    assert claims.refill(conn, Lanes(("costly",)), Budgets(), places=500)[0] == 0
    app.limit("queue:costly", budget=1)
    claims.refill(conn, Lanes(("costly",)), Budgets(), places=500)
    assert len(worker(("costly",)).turn().jobs) == 1
