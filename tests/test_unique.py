"""A unique key is held by one job, whoever writes how many at once, and is free again when it is said to be."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from queuety import DuplicateJob, JobHandle, JobNotFound, PayloadError, Queuety, UsageError, WrongState
from queuety.features.recover import recover
from queuety.model import Again, Bury, Complete, ErrorInfo, GiveBack, Settlement
from queuety.policy.retry import Backoff
from queuety.store import claims, retention
from queuety.store.batch import Batch
from queuety.store.claims import Claimed, Want
from queuety.store.connect import Connection, connect
from queuety.store.lanes import Lanes
from tests.daemon import daemon, read_ledger, until
from tests.test_transactions import ROADS

FAULT = ErrorInfo("ValueError", "no good")


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    app = Queuety(database)
    app.job(lambda n=0: n, name="add")  # type: ignore[call-overload]
    app.job(lambda n=0, **_: n, name="once", unique=True)  # type: ignore[call-overload]
    yield app
    app.close()


def claim(conn: Connection, size: int = 1, stale_s: float = 60.0) -> list[Claimed]:
    return claims.turn(conn, None, Want(Lanes(("default",)), size, "w#1", stale_s))[1]


def settle(conn: Connection, job: Claimed, settlement: Settlement) -> None:
    batch = Batch(job.lease)
    batch.add(job.id, settlement)
    assert claims.turn(conn, batch, None)[0] == 1


def run(conn: Connection, settlement: Settlement) -> None:
    [job] = claim(conn)
    settle(conn, job, settlement)


def count(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.jobs").fetchone()
    assert row is not None
    return int(row[0])


def write(app: Queuety, **given: Any) -> JobHandle:
    handle: JobHandle = app.enqueue("add", **{"unique_key": "k", **given})
    return handle


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run all of them at the same time; what each returned or raised."""
    start = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def one(place: int) -> None:
        start.wait(30)
        try:
            results[place] = works[place]()
        except Exception as error:  # noqa: BLE001 - it is the result
            results[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


# ── what the key is ───────────────────────────────────────────────────────────────────────────────


def test_equal_payloads_of_a_unique_handler_are_one_job_whatever_the_order_of_their_keys(app, conn):
    one = app.enqueue("once", {"n": 1, "x": {"b": [1, {"d": "é", "c": None}], "a": 2}})
    same = app.enqueue("once", {"x": {"a": 2, "b": [1, {"c": None, "d": "é"}]}, "n": 1}, queue="other")

    assert same == one
    assert one.job().unique_key.startswith("sha256:")
    assert count(conn) == 1


@pytest.mark.parametrize("other", [{"n": 2}, {"n": "1"}, {"n": 1.0}, {"n": True}, {}, {"n": 1, "x": None}])
def test_other_payloads_are_other_jobs(app, conn, other):
    app.enqueue("once", {"n": 1})

    app.enqueue("once", other)

    assert count(conn) == 2


def test_other_handlers_are_other_jobs(app, conn):
    app.enqueue("once", {"n": 1})

    app.enqueue("add", {"n": 1}, unique=True)

    assert count(conn) == 2


def test_a_key_comes_before_the_payload_and_one_job_may_do_without(app, conn):
    first = app.enqueue("once", {"n": 1}, unique_key="k")

    assert app.enqueue("once", {"n": 2}, unique_key="k") == first
    app.enqueue("once", {"n": 1}, unique=False)
    app.enqueue("once", {"n": 1}, unique=False)
    assert count(conn) == 3


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"unique": 1}, "unique=1 is neither"),
        ({"unique_key": "k", "unique_until": "claim"}, "unique_until='claim' is unknown"),
        ({"unique_key": "k", "unique_for": 0}, "unique_for: .* is out of range"),
        ({"unique_key": "k", "unique_for": "soon"}, "unique_for: .* is not a duration"),
        ({"unique_key": "k", "unique_for": 1, "unique_until": "start"}, "exclude each other"),
        ({"unique_key": "k", "on_duplicate": "ignore"}, "on_duplicate='ignore' is unknown"),
        ({"unique_for": 1}, "unique_for is given, but the job has no key"),
        ({"unique_until": "end"}, "unique_until is given, but the job has no key"),
        ({"on_duplicate": "skip"}, "on_duplicate is given, but the job has no key"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_written(app, conn, given, what):
    with pytest.raises(UsageError, match=what):
        app.enqueue("add", {}, **given)

    assert count(conn) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"unique": "yes"},
        {"unique_until": "never"},
        {"unique_for": -1},
        {"unique_for": 1, "unique_until": "end"},
    ],
)
def test_a_handlers_settings_are_checked_as_well(app, settings):
    with pytest.raises(UsageError, match="unique"):
        app.job(lambda: None, name="bad", **settings)


def test_what_is_given_for_a_job_wins_over_the_handlers_scope(app, conn):
    app.job(lambda n=0: n, name="hourly", unique=True, unique_for=3600)

    app.enqueue("hourly", {"n": 1})
    app.enqueue("hourly", {"n": 2}, unique_until="start")

    assert conn.execute("SELECT until FROM queuety.unique_keys ORDER BY job_id").fetchall() == [
        ("window",),
        ("start",),
    ]


# ── what becomes of a duplicate ───────────────────────────────────────────────────────────────────


def test_a_duplicate_is_the_job_that_is_there_an_error_or_nothing(app, conn):
    first = write(app, payload={"n": 1})

    assert write(app, payload={"n": 2}) == first
    assert write(app, payload={"n": 2}, on_duplicate="skip") is None
    with pytest.raises(DuplicateJob, match=f"job {first.id} has the unique key 'k'") as refused:
        write(app, on_duplicate="error")
    assert refused.value.existing == first.id
    assert (count(conn), first.job().payload) == (1, {"n": 1})


def test_a_pending_job_is_replaced_under_its_id(app, conn):
    first = write(app, payload={"n": 1}, tags=["old"], delay=60, max_attempts=1, backoff=[5])

    second = write(
        app,
        payload={"n": 2},
        on_duplicate="replace",
        queue="other",
        priority="high",
        tags=["new"],
        max_attempts=7,
    )

    job = first.job()
    assert second == first
    assert (job.payload, job.queue, job.priority, job.tags, job.max_attempts) == (
        {"n": 2},
        "other",
        1,
        ("new",),
        7,
    )
    assert (job.available_at - job.created_at).total_seconds() < 30
    assert conn.execute("SELECT backoff FROM queuety.jobs").fetchall() == [(None,)]
    assert [event.type for event in first.events()] == ["replaced"]


def test_a_replaced_job_that_has_failed_gets_a_fresh_budget(app, conn):
    job = write(app, max_attempts=2, backoff=[0])
    [run] = claim(conn)
    settle(conn, run, Again(60.0, True, FAULT, "retried"))

    write(app, on_duplicate="replace", payload={"n": 5})

    assert (job.job().attempts, job.job().error, job.job().max_attempts) == (0, None, 3)
    [again] = claim(conn)
    assert again.payload == '{"n":5}'


def test_a_running_job_cannot_be_replaced(app, conn):
    first = write(app)
    claim(conn)

    with pytest.raises(DuplicateJob, match="not pending any more") as refused:
        write(app, on_duplicate="replace")

    assert refused.value.existing == first.id
    assert count(conn) == 1


def test_a_job_whose_window_lasts_though_it_has_ended_cannot_be_replaced(app, conn):
    first = write(app, unique_for=60)
    run(conn, Complete())

    with pytest.raises(DuplicateJob, match="not pending any more"):
        write(app, on_duplicate="replace")

    assert first.job().state == "completed"
    assert count(conn) == 0


def test_a_replacement_brings_its_own_scope(app, conn):
    write(app)

    write(app, on_duplicate="replace", unique_until="start")
    claim(conn)

    assert write(app)
    assert count(conn) == 2


# ── what frees a key ──────────────────────────────────────────────────────────────────────────────


def completed(app: Queuety, conn: Connection, job: JobHandle) -> None:
    run(conn, Complete())


def buried(app: Queuety, conn: Connection, job: JobHandle) -> None:
    run(conn, Bury(FAULT))


def buried_by_hand(app: Queuety, conn: Connection, job: JobHandle) -> None:
    app.bury(job.id)


def cancelled(app: Queuety, conn: Connection, job: JobHandle) -> None:
    app.cancel(job.id)


def cancelled_while_it_ran(app: Queuety, conn: Connection, job: JobHandle) -> None:
    [run] = claim(conn)
    app.cancel(job.id)
    batch = Batch(run.lease)
    batch.cancelled.append(run.id)
    claims.turn(conn, batch, None)


def deleted(app: Queuety, conn: Connection, job: JobHandle) -> None:
    app.delete(job.id)


def lost_recovered_completed(app: Queuety, conn: Connection, job: JobHandle) -> None:
    claim(conn, stale_s=-1.0)
    recover(conn, Backoff.parse([0]))
    run(conn, Complete())


def completed_deleted(app: Queuety, conn: Connection, job: JobHandle) -> None:
    run(conn, Complete())
    app.delete(job.id)


def completed_purged(app: Queuety, conn: Connection, job: JobHandle) -> None:
    run(conn, Complete())
    assert app.purge().completed == 1


def buried_purged(app: Queuety, conn: Connection, job: JobHandle) -> None:
    run(conn, Bury(FAULT))
    assert app.purge().buried == 1


def row_deleted_in_sql(app: Queuety, conn: Connection, job: JobHandle) -> None:
    conn.execute("DELETE FROM queuety.jobs WHERE id = %s", [job.id])


KEPT_BY_A_WINDOW = [
    completed,
    buried,
    buried_by_hand,
    cancelled,
    cancelled_while_it_ran,
    lost_recovered_completed,
]
GONE = [deleted, completed_deleted, completed_purged, buried_purged]
ENDS = [*KEPT_BY_A_WINDOW, *GONE, row_deleted_in_sql]


@pytest.mark.parametrize("until", ["end", "start"])
@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_job_frees_its_key(app, conn, end, until):
    first = write(app, unique_until=until)
    assert write(app) == first

    end(app, conn, first)

    assert write(app, on_duplicate="error") != first
    assert count(conn) == 1


@pytest.mark.parametrize("end", KEPT_BY_A_WINDOW)
def test_a_window_outlasts_every_end_of_its_job_and_is_over_in_time(app, conn, end):
    first = write(app, unique_for=3600)

    end(app, conn, first)

    assert write(app) == first
    assert write(app, on_duplicate="skip") is None
    conn.execute("UPDATE queuety.unique_keys SET lapses_at = now()")
    assert write(app) != first


@pytest.mark.parametrize("end", GONE)
def test_a_job_that_is_deleted_or_purged_takes_its_window_with_it(app, conn, end):
    first = write(app, unique_for=3600)

    end(app, conn, first)

    assert write(app, on_duplicate="error") != first


def test_a_window_that_is_over_frees_the_key_though_its_job_waits(app, conn):
    first = write(app, unique_for=0.05)
    time.sleep(0.1)

    assert write(app, unique_for=0.05) != first
    assert count(conn) == 2


def test_a_window_is_counted_from_the_enqueue(app, conn):
    write(app, unique_for=3600, delay="5h")

    row = conn.execute(
        "SELECT extract(EPOCH FROM lapses_at - now())::int FROM queuety.unique_keys"
    ).fetchone()
    assert row is not None
    assert 3590 <= row[0] <= 3600


def test_a_key_until_the_start_is_free_while_its_job_runs(app, conn):
    first = write(app, unique_until="start")
    claim(conn)

    second = write(app, unique_until="start", on_duplicate="error")

    assert second != first
    assert write(app) == second


def test_a_key_until_the_end_is_held_while_its_job_runs(app, conn):
    first = write(app)
    claim(conn)

    assert write(app) == first


def test_a_job_that_comes_back_has_its_key_again_unless_another_has_taken_it(app, conn):
    first = write(app, unique_until="start")
    [run] = claim(conn)
    settle(conn, run, GiveBack())
    assert write(app) == first

    [run] = claim(conn)
    second = write(app, unique_until="start")
    settle(conn, run, GiveBack())

    assert write(app) == second
    assert count(conn) == 2
    assert {job.id for job in claim(conn, 10)} == {first.id, second.id}


def test_one_key_is_one_whatever_the_scope(app, conn):
    scopes: list[dict[str, Any]] = [{"unique_until": "start"}, {"unique_until": "end"}, {"unique_for": 60}]

    for scope, other in itertools.permutations(scopes, 2):
        first = write(app, **scope)
        assert write(app, **other) == first
        app.delete(first.id)


# ── retries by hand ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("until", ["end", "start"])
@pytest.mark.parametrize("end", [buried, buried_by_hand, cancelled, cancelled_while_it_ran])
def test_a_retry_takes_the_key_again(app, conn, end, until):
    first = write(app, unique_until=until)
    end(app, conn, first)
    retention.prune_keys(conn)

    app.retry(first.id)

    assert write(app) == first
    claim(conn)
    assert (write(app) == first) is (until == "end")


@pytest.mark.parametrize("until", ["end", "start"])
@pytest.mark.parametrize("end", [buried, cancelled])
def test_a_retry_is_refused_while_another_holds_the_key_and_goes_afterwards(app, conn, end, until):
    first = write(app, unique_until=until)
    end(app, conn, first)
    second = write(app)

    with pytest.raises(WrongState, match=f"job {second.id} has the unique key 'k'"):
        app.retry(first.id)
    assert app.retry_buried() == 0

    app.cancel(second.id)
    app.retry(first.id)
    assert first.job().state == "pending"


def test_a_retry_neither_begins_a_window_nor_is_held_up_by_one(app, conn):
    first = write(app, unique_for=3600)
    run(conn, Bury(FAULT))
    conn.execute("UPDATE queuety.unique_keys SET lapses_at = now()")
    second = write(app, unique_for=3600)

    app.retry(first.id)

    assert first.job().state == "pending"
    assert write(app) == second


def test_a_job_that_is_retried_by_itself_never_collides_with_a_new_one(app, conn):
    for scope in ("end", "start"):
        first = write(app, unique_until=scope)
        for _ in range(2):
            [job] = [one for one in claim(conn, 10) if one.id == first.id]
            other = write(app, unique_until=scope)
            settle(conn, job, Again(0.0, True, FAULT, "retried"))
        assert (other == first) is (scope == "end")
        conn.execute("DELETE FROM queuety.jobs")


# ── at the same time ──────────────────────────────────────────────────────────────────────────────


def test_the_second_writer_waits_for_the_first_and_has_its_row_if_that_rolls_back(app, database, conn):
    with connect(database, autocommit=False) as other:
        first = write(app, connection=other)
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.append(write(app)))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        other.rollback()
    waiting.join(30)

    assert len(results) == 1
    assert results != [first]
    assert conn.execute("SELECT id FROM queuety.jobs").fetchall() == [(results[0].id,)]


def test_the_second_writer_waits_for_the_first_and_is_given_its_job_if_that_commits(app, database, conn):
    with connect(database, autocommit=False) as other:
        first = write(app, connection=other)
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.append(write(app)))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        other.commit()
    waiting.join(30)

    assert results == [first]
    assert count(conn) == 1


@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error"])
def test_who_was_only_told_of_a_job_holds_up_nobody(app, database, on_duplicate):
    first = write(app)
    with connect(database, autocommit=False) as other:
        with suppress(DuplicateJob):
            write(app, connection=other, on_duplicate=on_duplicate)

        assert at_once(lambda: write(app)) == [first]


def test_a_job_that_one_was_told_of_does_not_start_before_ones_own_commit(app, database, conn):
    first = write(app, unique_until="start")
    with connect(database, autocommit=False) as other:
        assert write(app, connection=other) == first

        assert claim(conn) == []
        other.commit()

    assert [job.id for job in claim(conn)] == [first.id]


@pytest.mark.parametrize("scope", [{"unique_until": "end"}, {"unique_until": "start"}, {"unique_for": 3600}])
@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error", "replace"])
def test_of_many_writers_one_writes(app, conn, scope, on_duplicate):
    def work() -> list[Any]:
        found: list[Any] = []
        for n in range(20):
            try:
                found.append(write(app, unique_key=f"k{n}", on_duplicate=on_duplicate, **scope))
            except DuplicateJob as error:
                found.append(JobHandle(app, error.existing))
        return found

    results = at_once(*[work] * 8)

    rows = dict(conn.execute("SELECT unique_key, id FROM queuety.jobs").fetchall())
    assert len(rows) == count(conn) == 20
    for n in range(20):
        answers = [result[n].id for result in results if result[n] is not None]
        assert set(answers) == {rows[f"k{n}"]}
        if on_duplicate != "skip":
            assert len(answers) == 8
        else:
            assert len(answers) == 1


def test_at_no_time_two_jobs_hold_a_key_while_all_is_done_to_them_at_once(app, database, conn):
    """Writers, workers, retries, cancels and deletes of a few keys: no two jobs of a key ever wait or run together."""
    over = threading.Event()
    conn.execute("CREATE TABLE seen (key text, id bigint)")

    def writer() -> int:
        done = 0
        while not over.is_set():
            key = f"k{random.randrange(3)}"
            on_duplicate = random.choice(["return", "skip", "replace"])
            try:
                if random.random() < 0.3:
                    done += len(app.enqueue_many([("add", {}), ("once", {"n": random.randrange(3)})]))
                else:
                    done += write(app, unique_key=key, on_duplicate=on_duplicate, max_attempts=2) is not None
            except DuplicateJob:
                pass
        return done

    def worker() -> int:
        done = 0
        with connect(database) as own:
            while not over.is_set():
                for job in claim(own, random.randrange(1, 4)):
                    settlements: list[Settlement] = [Complete(), Bury(FAULT), GiveBack()]
                    settle(own, job, random.choice(settlements))
                    done += 1
        return done

    def actor() -> int:
        done = 0
        while not over.is_set():
            job = random.choice([*app.jobs(limit=20), None])
            if job is None:
                continue
            with suppress(WrongState, JobNotFound):
                random.choice([app.retry, app.cancel, app.delete])(job.id)
                done += 1
            app.retry_buried()
            with connect(database) as own:
                retention.prune_keys(own)
        return done

    def watcher() -> int:
        done = 0
        with connect(database) as own:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                twice = own.execute(
                    "SELECT unique_key, array_agg(id) FROM queuety.jobs WHERE unique_key IS NOT NULL"
                    " GROUP BY unique_key HAVING count(*) > 1"
                ).fetchall()
                if twice:
                    over.set()
                    raise AssertionError(twice)
                done += 1
        over.set()
        return done

    results = at_once(writer, writer, writer, worker, worker, actor, watcher)

    assert all(isinstance(result, int) and result > 0 for result in results), results


# ── bulk ──────────────────────────────────────────────────────────────────────────────────────────


def engine_session(database: str) -> Session:
    return Session(create_engine(database.replace("postgresql://", "postgresql+psycopg://")))


def test_a_bulk_of_unique_jobs_gives_the_same_id_to_the_same_payload(app, conn):
    before = app.enqueue("once", {"n": 1})

    handles = app.enqueue_many([("once", {"n": n}) for n in (0, 1, 2, 0, 2, 3)])

    ids = list(handles.ids)
    assert (ids[0], ids[2], ids[1]) == (ids[3], ids[4], before.id)
    assert [handle.job().payload["n"] for handle in handles] == [0, 1, 2, 0, 2, 3]
    assert count(conn) == 4


def test_a_bulk_mixes_unique_jobs_with_plain_ones_in_their_order(app, conn):
    handles = app.enqueue_many(
        [("add", {"n": 0}), ("once", {"n": 1}), ("add", {"n": 2}), ("once", {"n": 1}), ("add", {"n": 3})]
    )

    assert [handle.job().payload["n"] for handle in handles] == [0, 1, 2, 1, 3]
    assert [job.id for job in claim(conn, 10)] == sorted(set(handles.ids))


def test_a_bulk_leaves_out_what_is_there(app, conn):
    app.enqueue("once", {"n": 1})

    handles = app.handlers["once"].using(on_duplicate="skip").enqueue_many([{"n": n} for n in (0, 1, 2, 0)])

    assert [handle.job().payload["n"] for handle in handles] == [0, 2]
    assert count(conn) == 3


@pytest.mark.parametrize("payloads", [[0, 1, 2], [3, 4, 3]])
def test_a_bulk_that_must_not_meet_duplicates_writes_nothing_if_it_does(app, conn, payloads):
    app.enqueue("once", {"n": 2})

    with pytest.raises(DuplicateJob, match="unique key"):
        app.handlers["once"].using(on_duplicate="error").enqueue_many([{"n": n} for n in payloads])

    assert count(conn) == 1
    assert (
        len(app.handlers["once"].using(on_duplicate="error").enqueue_many([{"n": n} for n in (0, 1, 3)])) == 3
    )


def test_a_bulk_replaces_what_is_pending_with_the_last_of_each_key(app, conn):
    before = app.enqueue("add", {"n": 1}, unique_key="k", priority="low")

    handles = (
        app.handlers["add"]
        .using(unique_key="k", on_duplicate="replace")
        .enqueue_many([{"n": n} for n in (7, 8, 9)])
    )
    fresh = (
        app.handlers["add"]
        .using(unique_key="new", on_duplicate="replace")
        .enqueue_many([{"n": n} for n in (4, 5, 6)])
    )

    assert set(handles.ids) == {before.id}
    assert before.job().payload == {"n": 9}
    assert [handle.job().payload for handle in fresh] == [{"n": 6}] * 3
    assert count(conn) == 2


def test_a_bulk_cannot_replace_what_runs_and_then_writes_nothing(app, conn):
    app.enqueue("once", {"n": 1})
    claim(conn)

    with pytest.raises(DuplicateJob, match="not pending any more"):
        app.handlers["once"].using(on_duplicate="replace").enqueue_many([{"n": n} for n in range(5)])

    assert count(conn) == 1


def test_a_bulk_with_a_bad_job_takes_no_key(app, conn):
    with pytest.raises(PayloadError, match="item 2"):
        app.enqueue_many([("once", {"n": 1}), ("once", {"n": 2}), ("once", {"n": {1}})])

    assert conn.execute("SELECT count(*) FROM queuety.unique_keys").fetchone() == (0,)


def test_a_bulk_of_any_size_is_streamed(app, conn, monkeypatch):
    from queuety.store import unique

    monkeypatch.setattr(unique, "CHUNK", 300)
    monkeypatch.setattr(unique, "SPOOLED", 1000)

    handles = app.enqueue_many(("once", {"n": n % 2500, "text": "é" * (n % 7)}) for n in range(5000))

    assert len(handles) == 5000
    assert count(conn) == len(set(handles.ids)) == len({(n % 2500, n % 7) for n in range(5000)})
    assert handles[2400].job().payload == {"n": 2400, "text": "é" * (2400 % 7)}


def test_bulks_of_the_same_keys_in_any_order_never_deadlock(app, conn, monkeypatch):
    from queuety.store import unique

    monkeypatch.setattr(unique, "CHUNK", 20)

    def work() -> int:
        numbers = list(range(200))
        done = 0
        for _ in range(5):
            random.shuffle(numbers)
            done += len(app.enqueue_many([("once", {"n": n}) for n in numbers]))
        return done

    assert at_once(*[work] * 6) == [1000] * 6
    assert count(conn) == 200


def test_a_bulk_waits_for_another_and_has_its_rows_if_that_rolls_back(app, database, conn):
    payloads = [("once", {"n": n}) for n in range(5)]
    with connect(database, autocommit=False) as other:
        app.enqueue_many(payloads, connection=other)
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.extend(app.enqueue_many(payloads[::-1]).ids))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        other.rollback()
    waiting.join(30)

    assert len(results) == 5
    assert {row[0] for row in conn.execute("SELECT id FROM queuety.jobs")} == set(results)


# ── whose transaction ─────────────────────────────────────────────────────────────────────────────

LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def outcome(app: Queuety, other: psycopg.Connection[Any], **given: Any) -> Any:
    try:
        made = write(app, connection=other, **given)
        other.commit()
    except (DuplicateJob, psycopg.errors.SerializationFailure) as error:
        other.rollback()
        return type(error).__name__
    return made


@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error", "replace"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_the_callers_snapshot_cannot_see_is_never_a_success_without_a_row(
    app, database, conn, level, on_duplicate
):
    with psycopg.connect(database) as other:
        other.isolation_level = level
        other.execute("SELECT")  # begins the transaction
        other.execute("SELECT count(*) FROM queuety.jobs")
        first = write(app)

        answer = outcome(app, other, on_duplicate=on_duplicate)

    seen = level is IsolationLevel.READ_COMMITTED
    expected = {"return": first, "skip": None, "error": "DuplicateJob", "replace": first}[on_duplicate]
    assert answer == (expected if seen else "SerializationFailure")
    assert count(conn) == 1


@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error", "replace"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_key_that_was_free_in_the_callers_snapshot_and_is_taken_again_is_not_taken_twice(
    app, database, conn, level, on_duplicate
):
    first = write(app)
    run(conn, Bury(FAULT))
    with psycopg.connect(database) as other:
        other.isolation_level = level
        other.execute("SELECT count(*) FROM queuety.jobs")
        app.retry(first.id)

        answer = outcome(app, other, on_duplicate=on_duplicate)

    seen = level is IsolationLevel.READ_COMMITTED
    expected = {"return": first, "skip": None, "error": "DuplicateJob", "replace": first}[on_duplicate]
    assert answer == (expected if seen else "SerializationFailure")
    assert count(conn) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_isolation_each_caller_has_a_row_or_an_error(app, database, conn, level):
    def work() -> list[Any]:
        with psycopg.connect(database) as other:
            other.isolation_level = level
            return [outcome(app, other, unique_key=f"k{n}") for n in range(20)]

    results = at_once(*[work] * 6)

    rows = dict(conn.execute("SELECT unique_key, id FROM queuety.jobs").fetchall())
    assert len(rows) == count(conn) == 20
    for result in results:
        assert isinstance(result, list), result
        for n, answer in enumerate(result):
            assert answer in ("SerializationFailure", JobHandle(app, rows[f"k{n}"]))


@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error", "replace"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_bulk_is_all_or_nothing_at_every_isolation(app, database, conn, level, on_duplicate):
    once = app.handlers["once"]
    with psycopg.connect(database) as other:
        other.isolation_level = level
        other.execute("SELECT count(*) FROM queuety.jobs")
        first = once.enqueue(n=3)
        try:
            bulk = once.using(connection=other, on_duplicate=on_duplicate)
            made = list(bulk.enqueue_many([{"n": n} for n in range(5)]).ids)
            other.commit()
        except (DuplicateJob, psycopg.errors.SerializationFailure) as error:
            other.rollback()
            made = [type(error).__name__]

    if level is not IsolationLevel.READ_COMMITTED:
        assert made == ["SerializationFailure"]
    elif on_duplicate == "error":
        assert made == ["DuplicateJob"]
    else:
        assert (first.id in made, len(made)) == ((False, 4) if on_duplicate == "skip" else (True, 5))
    assert count(conn) == (5 if len(made) > 1 else 1)


def test_a_job_that_is_parked_for_room_still_holds_its_key_until_its_start(app, conn):
    options = {"unique_until": "start", "concurrency_group": "g", "concurrency_limit": 1}
    app.enqueue("add", {"n": 1}, concurrency_group="g", concurrency_limit=1)
    waits = write(app, **options)

    [running] = claim(conn, 10)
    assert running.id != waits.id
    assert waits.job().parked_on == "group:g"
    assert write(app, **options) == waits

    settle(conn, running, Complete())
    conn.execute("UPDATE queuety.jobs SET parked_on = NULL, parked_at = NULL")
    assert [job.id for job in claim(conn, 10)] == [waits.id]
    assert write(app, **options) != waits


@pytest.mark.parametrize("commit", [True, False])
def test_through_a_session_the_key_lives_and_dies_with_the_job(app, database, conn, commit):
    with engine_session(database) as session:
        first = app.enqueue("once", {"n": 1}, connection=session)
        assert app.enqueue("once", {"n": 1}, connection=session) == first
        assert app.enqueue("once", {"n": 1}, connection=session, on_duplicate="replace") == first
        assert set(app.enqueue_many([("once", {"n": 1})] * 3, connection=session).ids) == {first.id}
        session.commit() if commit else session.rollback()

    assert (app.enqueue("once", {"n": 1}) == first) is commit
    assert count(conn) == 1


def test_a_refused_bulk_leaves_the_callers_transaction_usable(app, database, conn):
    app.enqueue("once", {"n": 2})
    with connect(database, autocommit=False) as other:
        with pytest.raises(DuplicateJob):
            app.handlers["once"].using(on_duplicate="error", connection=other).enqueue_many(
                [{"n": 1}, {"n": 2}]
            )
        app.enqueue("add", {}, connection=other)
        other.commit()

    assert count(conn) == 2


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("on_duplicate", ["return", "skip", "replace"])
def test_every_road_of_the_callers_serves_one_and_many(app, database, conn, road, on_duplicate):
    conn.execute("CREATE TABLE effects (key text)")
    before = app.enqueue("once", {"n": 1}, delay=60)
    made: list[Any] = []

    def body(connection: Any) -> None:
        once = app.handlers["once"].using(connection=connection, on_duplicate=on_duplicate, unique_for="1h")
        made.append(once.enqueue(n=1))
        made.append(once.enqueue(n=2))
        made.extend(once.enqueue_many([{"n": n} for n in (1, 2, 3, 3)]))

    road(database, body, True)

    rows = dict(conn.execute("SELECT payload ->> 'n', id FROM queuety.jobs").fetchall())
    assert count(conn) == len(rows) == 3
    assert rows["1"] == before.id
    given = [job and job.id for job in made]
    if on_duplicate == "skip":
        assert given == [None, rows["2"], rows["3"]]
    else:
        assert given == [rows[n] for n in ("1", "2", "1", "2", "3", "3")]


@pytest.mark.parametrize("on_duplicate", ["return", "skip", "error", "replace"])
def test_ones_own_connections_try_again_in_a_database_that_is_serializable_by_default(
    app, database, conn, on_duplicate
):
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET default_transaction_isolation = serializable")

    def work() -> int:
        done = 0
        for n in range(20):
            with suppress(DuplicateJob):
                done += write(app, unique_key=f"k{n}", on_duplicate=on_duplicate) is not None
            done += len(app.enqueue_many([("once", {"n": n})] * 2))
        return done

    results = at_once(*[work] * 4)

    assert all(isinstance(result, int) for result in results), results
    assert count(conn) == 40


# ── through SQL ───────────────────────────────────────────────────────────────────────────────────


def in_sql(conn: Connection, job: str) -> Any:
    row = conn.execute("SELECT queuety.enqueue(%s::jsonb)", [job]).fetchone()
    assert row is not None
    return row[0]


def test_the_sql_function_knows_the_scopes_and_what_becomes_of_a_duplicate(app, conn):
    first = in_sql(conn, '{"handler": "add", "unique_key": "k", "unique_until": "start"}')
    assert in_sql(conn, '{"handler": "add", "unique_key": "k", "on_duplicate": "return"}') == first
    assert in_sql(conn, '{"handler": "add", "unique_key": "k", "on_duplicate": "skip"}') is None
    with pytest.raises(psycopg.errors.UniqueViolation, match=f"job {first} has the unique key"):
        in_sql(conn, '{"handler": "add", "unique_key": "k", "on_duplicate": "error"}')
    assert write(app).id == first

    claim(conn)
    second = in_sql(conn, '{"handler": "add", "unique_key": "k", "unique_for": 3600}')
    assert second != first
    run(conn, Complete())
    assert in_sql(conn, '{"handler": "add", "unique_key": "k"}') == second


@pytest.mark.parametrize(
    ("job", "what"),
    [
        ('"unique_until": "start"', "need a unique_key"),
        ('"unique_key": "k", "unique_until": "never"', "unique_until must be"),
        ('"unique_key": "k", "unique_for": 0', "unique_for must be seconds"),
        ('"unique_key": "k", "unique_for": "1h"', "unique_for must be seconds"),
        ('"unique_key": "k", "unique_for": 1, "unique_until": "end"', "exclude each other"),
        ('"unique_key": "k", "on_duplicate": "replace"', "on_duplicate must be"),
        ('"unique": true', 'unknown key "unique"'),
    ],
)
def test_the_sql_function_refuses_what_cannot_be_meant(conn, job, what):
    with pytest.raises(psycopg.Error, match=what):
        in_sql(conn, '{"handler": "add", ' + job + "}")

    assert count(conn) == 0


# ── in a pool ──


def test_a_job_whose_worker_is_killed_holds_its_key_until_it_has_ended_after_all(database, tmp_path):
    queue = Queuety(database)
    ledger, log = tmp_path / "ledger", tmp_path / "log"
    options = {"unique_key": "k", "backoff": [0.1]}
    with daemon(database, "--workers=2", ledger=ledger, log=log, env={"QUEUETY_WORKER_SLEEP": "0.5"}) as pool:
        pool.ready(2)
        first = queue.enqueue("sleep", {"seconds": 1.0}, **options)
        begun = until(lambda: [one for one in read_ledger(ledger) if one.job == first.id], what="start")
        os.kill(begun[0].pid, signal.SIGKILL)
        until(lambda: first.job().attempts == 2, what="the second attempt")

        assert queue.enqueue("sleep", {"seconds": 0}, **options) == first
        assert first.wait(20).state == "completed"
        second = queue.enqueue("sleep", {"seconds": 0}, **options)
        assert second != first
        assert second.wait(20).state == "completed"
    queue.close()


def test_work_that_is_unique_until_its_start_misses_no_change(database, tmp_path):
    """Whoever writes something and then enqueues: the last run has seen all that was written."""
    queue = Queuety(database)
    with connect(database) as conn:
        conn.execute("CREATE TABLE changes (id serial)")
        conn.execute("CREATE TABLE sums (total int)")
    environment = {"QUEUETY_WORKER_SLEEP": "0.2"}

    def writer() -> int:
        with psycopg.connect(database) as own:
            for _ in range(40):
                own.execute("INSERT INTO changes DEFAULT VALUES")
                queue.enqueue("total", unique=True, unique_until="start", connection=own)
                time.sleep(random.random() * 0.01)  # the job must not start in this time
                own.commit()
        return 40

    with (
        daemon(
            database, "--workers=2", app="tests.apps.sums:app", log=tmp_path / "log", env=environment
        ) as pool,
        connect(database) as conn,
    ):
        pool.ready(2)
        results = at_once(*[writer] * 4)
        until(lambda: queue.stats().pending + queue.stats().processing == 0, what="the end of all")
        last = conn.execute("SELECT max(total), count(*) FROM sums").fetchone()

    queue.close()
    assert results == [40] * 4
    assert last is not None
    assert last[0] == 160
    assert last[1] <= 160


# ── rights, housekeeping, plans ───────────────────────────────────────────────────────────────────


def test_whoever_may_write_jobs_may_write_unique_ones_and_nobody_else(app, database, login, conn):
    conn.execute("GRANT USAGE ON SCHEMA queuety TO PUBLIC")
    web, stranger = login("u_web"), login("u_stranger")
    conn.execute("GRANT SELECT, INSERT ON queuety.jobs TO u_web")
    conn.execute("GRANT SELECT ON queuety.sleepers TO u_web")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO u_web")

    with connect(web) as own:
        first = write(app, connection=own, unique_until="start")
        assert write(app, connection=own) == first
    with connect(stranger) as own, pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.execute("SELECT * FROM queuety.take_keys('{a}', '{1}', '{end}', NULL, true)")

    assert conn.execute("SELECT key, job_id FROM queuety.unique_keys").fetchall() == [("k", first.id)]


def test_keys_that_nobody_holds_are_pruned_and_the_others_kept(app, conn):
    held = [write(app, unique_key=key, delay=60).id for key in ("a", "m", "z")]
    window = write(app, unique_key="w", unique_for=3600).id
    for n in range(30):
        write(app, unique_key=f"k{n}", unique_for=0.001 if n % 2 else None, delay=60)
    conn.execute("DELETE FROM queuety.jobs WHERE unique_key LIKE 'k%'")
    run(conn, Complete())

    pruned, after = retention.prune_keys(conn, size=7)
    rounds = [pruned]
    while after:
        pruned, after = retention.prune_keys(conn, after, size=7)
        rounds.append(pruned)

    assert rounds == [7, 7, 7, 7, 2]

    assert conn.execute("SELECT job_id FROM queuety.unique_keys ORDER BY job_id").fetchall() == [
        (job_id,) for job_id in [*held, window]
    ]


def test_a_key_that_is_taken_at_the_very_moment_is_not_pruned(app, database, conn):
    write(app)
    run(conn, Complete())
    with connect(database, autocommit=False) as other:
        second = write(app, connection=other)

        assert retention.prune_keys(conn) == (0, "")
        other.commit()

    assert write(app) == second


def test_taking_a_key_reads_neither_all_keys_nor_all_jobs(app, database, conn):
    conn.execute(
        "INSERT INTO queuety.unique_keys (key, job_id, until) "
        "SELECT 'x' || n, n, 'end' FROM generate_series(1, 30000) AS n"
    )
    conn.execute(
        "INSERT INTO queuety.jobs (id, handler, available_at) "
        "SELECT 1000000 + n, 'add', now() + interval '1 h' FROM generate_series(1, 30000) AS n"
    )
    reads = "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('unique_keys', 'jobs')"

    def work() -> None:
        for n in range(20):
            for on_duplicate in ("return", "replace"):
                app.enqueue("once", {"n": n}, on_duplicate=on_duplicate)
        app.enqueue_many([("once", {"n": n}) for n in range(3000)])

    with connect(database) as own:
        before = own.execute(reads).fetchone()
        work()
        app.close()
        time.sleep(1.5)  # a session reports what it has read when it ends, or after a second
        after = own.execute(reads).fetchone()

    assert before is not None
    assert after is not None
    assert after[0] - before[0] < 30_000
