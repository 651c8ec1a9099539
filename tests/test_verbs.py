"""Cancel, retry, bury, delete, purge: one change of state each, whatever happens at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from queuety.errors import JobNotFound, UsageError, WrongState
from queuety.model import Again, Bury, Cancel, Complete, ErrorInfo, NewJob, Settlement, State
from queuety.store import batch as batches
from queuety.store import claims, enqueue, events, search, transactions, verbs
from queuety.store.batch import Batch
from queuety.store.claims import Claimed, Want
from queuety.store.connect import Connection, connect
from queuety.store.lanes import Lanes
from queuety.store.verbs import Purged
from tests.builders import claim_within

FAULT = ErrorInfo("ValueError", "no good")


def pending(conn: Connection, **given: Any) -> int:
    job_id = enqueue.one(conn, NewJob(**{"handler": "add", "payload": "{}", **given}))
    assert job_id is not None
    return job_id


def claim(conn: Connection, queue: str = "default", size: int = 1) -> list[Claimed]:
    return claims.turn(conn, None, Want(Lanes((queue,)), size, "w#1", 60.0))[1]


def running(conn: Connection, **given: Any) -> Claimed:
    pending(conn, **given)
    [job] = claim(conn, given.get("queue", "default"))
    return job


def settle(conn: Connection, job: Claimed, settlement: Settlement) -> int:
    batch = Batch(job.lease)
    batch.add(job.id, settlement)
    return claims.turn(conn, batch, None)[0]


def completed(conn: Connection, **given: Any) -> int:
    job = running(conn, **given)
    assert settle(conn, job, Complete("1")) == 1
    return job.id


def buried(conn: Connection, **given: Any) -> int:
    job = running(conn, **given)
    assert settle(conn, job, Bury(FAULT)) == 1
    return job.id


def cancelled(conn: Connection, **given: Any) -> int:
    job_id = pending(conn, **given)
    verbs.cancel(conn, job_id)
    return job_id


def parked(conn: Connection, **given: Any) -> int:
    job = running(conn, **given)
    batch = Batch(job.lease)
    batch.parked.append((job.id, "handler:add"))
    assert claims.turn(conn, batch, None)[0] == 1
    return job.id


def state(conn: Connection, job_id: int) -> State:
    return search.find(conn, job_id).state


def kinds(conn: Connection, job_id: int) -> list[str]:
    return [event.type for event in events.read(conn, job_id)]


def scalar(conn: Connection, text: str, *values: Any) -> Any:
    row = conn.execute(text, values).fetchone()
    assert row is not None
    return row[0]


def heard(listener: Connection) -> list[str]:
    return [note.payload for note in listener.notifies(timeout=0.2)]


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    with connect(database, name="other") as connection:
        yield connection


@pytest.fixture
def listener(database: str) -> Iterator[Connection]:
    with connect(database, name="listener") as connection:
        connection.execute("LISTEN queuety")
        yield connection


@contextmanager
def meanwhile(database: str, work: Callable[[Connection], Any]) -> Iterator[list[Any]]:
    """Do `work` in a thread, on a connection of its own, while the block runs until it waits for a lock."""
    ended: list[Any] = []

    def body() -> None:
        with connect(database, name="meanwhile") as connection:
            try:
                ended.append(work(connection))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                ended.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    with connect(database, name="watch") as watch:
        wait_until(
            lambda: scalar(
                watch,
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'meanwhile'"
                " AND wait_event_type = 'Lock'",
            )
        )
    yield ended
    thread.join(10)
    assert not thread.is_alive()


def wait_until(condition: Callable[[], Any], within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)


# ── cancel ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("waiting", [pending, parked])
def test_a_waiting_job_is_cancelled_at_once_and_stays_so(conn, waiting):
    job_id = waiting(conn)

    assert verbs.cancel(conn, job_id) is State.CANCELLED
    assert verbs.cancel(conn, job_id) is State.CANCELLED

    job = search.find(conn, job_id)
    assert job.state is State.CANCELLED
    assert job.finished_at is not None
    assert claim(conn) == []


def test_a_running_job_is_asked_once_to_end_and_goes_on(conn, listener):
    job = running(conn)

    assert verbs.cancel(conn, job.id) is State.PROCESSING
    assert verbs.cancel(conn, job.id) is State.PROCESSING

    assert heard(listener) == [f"c:{job.id}"]
    assert kinds(conn, job.id) == ["cancel_requested"]
    assert claims.renew(conn, [(job.id, job.lease)], 60.0) == {(job.id, job.lease): True}
    assert settle(conn, job, Cancel()) == 1
    assert verbs.cancel(conn, job.id) is State.CANCELLED


@pytest.mark.parametrize("ended", [completed, buried])
def test_a_job_that_ended_otherwise_is_not_cancelled(conn, ended):
    job_id = ended(conn)
    before = search.find(conn, job_id)

    with pytest.raises(WrongState, match=f"job {job_id} is {before.state}"):
        verbs.cancel(conn, job_id)

    assert search.find(conn, job_id) == before


def test_cancelling_frees_the_unique_key(conn):
    first = pending(conn, unique_key="k")
    verbs.cancel(conn, first)

    assert pending(conn, unique_key="k") != first


def test_a_cancel_that_meets_a_claim_asks_the_run_to_end(database, conn, other):
    job_id = pending(conn)
    with other.transaction():
        claim_within(other)
        with meanwhile(database, lambda mine: verbs.cancel(mine, job_id)) as ended:
            other.execute("COMMIT; BEGIN", prepare=False)

    assert ended == [State.PROCESSING]
    assert kinds(conn, job_id) == ["cancel_requested"]


def test_a_cancel_that_meets_the_end_of_the_run_leaves_it_completed(database, conn, other):
    job = running(conn)
    batch = Batch(job.lease)
    batch.add(job.id, Complete("1"))
    with other.transaction():
        batches.settle(other, batch)
        with meanwhile(database, lambda mine: verbs.cancel(mine, job.id)) as ended:
            other.execute("COMMIT; BEGIN", prepare=False)

    assert isinstance(ended[0], WrongState)
    assert state(conn, job.id) is State.COMPLETED


def test_a_cancel_that_meets_a_retry_of_the_run_cancels_the_waiting_job(database, conn, other):
    job = running(conn)
    batch = Batch(job.lease)
    batch.add(job.id, Again(0.0, True, FAULT, "retried"))
    with other.transaction():
        batches.settle(other, batch)
        with meanwhile(database, lambda mine: verbs.cancel(mine, job.id)) as ended:
            other.execute("COMMIT; BEGIN", prepare=False)

    assert ended == [State.CANCELLED]
    assert state(conn, job.id) is State.CANCELLED


# ── retry ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ended", [buried, cancelled])
def test_a_retried_job_has_a_fresh_budget_and_no_lease(conn, ended):
    job_id = ended(conn, max_attempts=1, payload='{"a": 1}', tags=("red",), unique_key="k", priority=1)
    before = search.find(conn, job_id)

    verbs.retry(conn, job_id)

    job = search.find(conn, job_id)
    assert (job.state, job.attempts, job.max_attempts) == (State.PENDING, 0, 1)
    assert (job.worker, job.started_at, job.finished_at, job.parked_on) == (None, None, None, None)
    for kept in ("created_at", "payload", "tags", "unique_key", "priority", "queue", "handler", "error"):
        assert getattr(job, kept) == getattr(before, kept)
    lease = scalar(conn, "SELECT (lease, lease_until, parked_at, cancel_requested)::text FROM queuety.jobs")
    assert lease == "(0,,,f)"
    [again] = claim(conn)
    assert (again.id, again.attempts) == (job_id, 1)


def test_a_retried_job_is_due_now_though_it_was_not(conn):
    job_id = cancelled(conn, delay_s=86_400.0)

    verbs.retry(conn, job_id)

    assert [job.id for job in claim(conn)] == [job_id]


def test_the_past_of_a_retried_job_stays_in_the_journal(conn):
    job_id = buried(conn)
    verbs.retry(conn, job_id)
    [job] = claim(conn)
    settle(conn, job, Bury(FAULT))

    verbs.retry(conn, job_id)

    assert kinds(conn, job_id) == ["buried", "requeued", "buried", "requeued"]
    data = events.read(conn, job_id)[1].data
    assert data is not None
    assert (data["from"], data["error"]) == ("buried", FAULT.as_json())


def test_a_late_worker_cannot_settle_a_retried_job(conn):
    job = running(conn)
    settle(conn, job, Bury(FAULT))
    verbs.retry(conn, job.id)

    assert settle(conn, job, Complete("1")) == 0

    assert state(conn, job.id) is State.PENDING


@pytest.mark.parametrize(
    ("make", "words"),
    [(pending, "is pending already"), (completed, "is completed"), (parked, "is pending already")],
)
def test_only_what_was_given_up_is_retried(conn, make, words):
    job_id = make(conn)

    with pytest.raises(WrongState, match=words):
        verbs.retry(conn, job_id)


def test_a_running_job_is_not_retried(conn):
    job = running(conn)

    with pytest.raises(WrongState, match="is processing"):
        verbs.retry(conn, job.id)


@pytest.mark.parametrize("ended", [buried, cancelled])
def test_a_job_whose_key_is_taken_stays_as_it_is_and_the_holder_is_named(conn, ended):
    old = ended(conn, unique_key="k")
    before = search.find(conn, old)
    new = pending(conn, unique_key="k")

    with pytest.raises(WrongState, match=f"job {new} has the unique key 'k'"):
        verbs.retry(conn, old)

    assert search.find(conn, old) == before
    assert "requeued" not in kinds(conn, old)


def test_a_retry_wakes_only_pools_that_sleep_on_the_queue(conn, listener):
    conn.execute("INSERT INTO queuety.sleepers (pool, queue) VALUES (1, 'mail'), (2, 'mail')")
    mail, default = buried(conn, queue="mail"), cancelled(conn)
    heard(listener)

    verbs.retry(conn, mail)
    verbs.retry(conn, default)

    assert heard(listener) == ["q:mail"]


def test_of_two_retries_at_once_one_is_refused(database, conn):
    job_id = buried(conn)
    ends: list[Any] = []

    def body() -> None:
        with connect(database) as mine:
            try:
                verbs.retry(mine, job_id)
                ends.append(None)
            except WrongState as error:
                ends.append(error.message)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ends.count(None) == 1
    assert ends.count(f"job {job_id} is pending already") == 3
    assert kinds(conn, job_id).count("requeued") == 1


# ── retry of many ─────────────────────────────────────────────────────────────────────────────────────────────


def test_retrying_all_takes_what_fits_in_batches(conn, monkeypatch):
    monkeypatch.setattr(verbs, "BATCH", 2)
    mail = [buried(conn, queue="mail") for _ in range(5)]
    other = buried(conn, queue="mail", handler="other")
    elsewhere = buried(conn)
    told: list[int] = []

    assert verbs.retry_buried(conn, handler="add", queue="mail", dry_run=True) == 5
    assert verbs.retry_buried(conn, handler="add", queue="mail", progress=told.append) == 5

    assert told == [2, 4, 5]
    assert {state(conn, job_id) for job_id in mail} == {State.PENDING}
    assert {state(conn, job_id) for job_id in (other, elsewhere)} == {State.BURIED}


def test_retrying_all_takes_the_oldest_up_to_the_limit(conn):
    ids = [buried(conn) for _ in range(4)]

    assert verbs.retry_buried(conn, limit=3) == 3

    assert state(conn, ids[-1]) is State.BURIED


def test_retrying_all_leaves_jobs_whose_key_is_taken(conn):
    first, second = buried(conn, unique_key="k"), buried(conn, unique_key="k")
    free = buried(conn)

    assert verbs.retry_buried(conn) == 2

    assert state(conn, first) is State.PENDING
    assert state(conn, second) is State.BURIED
    assert state(conn, free) is State.PENDING


def test_retrying_all_does_not_wait_for_locked_rows(conn, other):
    held, free = buried(conn), buried(conn)
    with other.transaction():
        other.execute("SELECT FROM queuety.buried_jobs WHERE id = %s FOR UPDATE", [held])

        assert verbs.retry_buried(conn) == 1

    assert state(conn, free) is State.PENDING


# ── bury, delete ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("waiting", [pending, parked])
def test_a_waiting_job_is_buried_with_the_reason(conn, waiting):
    job_id = waiting(conn)

    verbs.bury(conn, job_id, "no\x00 longer wanted")

    job = search.find(conn, job_id)
    assert job.state is State.BURIED
    assert job.error == {"type": "Buried", "message": "no\ufffd longer wanted"}
    assert kinds(conn, job_id) == ["buried"]


@pytest.mark.parametrize("ended", [completed, buried, cancelled])
def test_what_has_ended_is_not_buried(conn, ended):
    with pytest.raises(WrongState):
        verbs.bury(conn, ended(conn), "why")


def test_what_runs_is_neither_buried_nor_deleted(conn):
    job = running(conn)

    with pytest.raises(WrongState, match="is running"):
        verbs.bury(conn, job.id, "why")
    with pytest.raises(WrongState, match="is running") as refused:
        verbs.delete(conn, job.id)

    assert refused.value.hint == "cancel it first"
    assert settle(conn, job, Complete("1")) == 1


@pytest.mark.parametrize("make", [pending, parked, completed, buried, cancelled])
def test_a_deleted_job_is_gone_with_its_journal(conn, make):
    job_id, kept = make(conn), make(conn)
    conn.execute(
        "INSERT INTO queuety.job_events (job_id, type) SELECT unnest(%s::bigint[]), 'progress'",
        [[job_id, kept]],
    )

    verbs.delete(conn, job_id)

    with pytest.raises(JobNotFound):
        search.find(conn, job_id)
    assert events.read(conn, job_id) == []
    assert "progress" in kinds(conn, kept)


VERBS: dict[str, Callable[[Connection, Any], Any]] = {
    "cancel": verbs.cancel,
    "retry": verbs.retry,
    "bury": lambda conn, job_id: verbs.bury(conn, job_id, "why"),
    "delete": verbs.delete,
    "find": search.find,
    "history": events.history,
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_id_is_a_whole_number_of_64_bits(conn, verb):
    for unknown in (0, -1, 12, 2**31, 2**63 - 1, -(2**63)):
        with pytest.raises(JobNotFound, match=f"no job {unknown}"):
            VERBS[verb](conn, unknown)

    for wrong in (2**63, -(2**63) - 1, 1.0, "1", True, None):
        with pytest.raises(UsageError):
            VERBS[verb](conn, wrong)


# ── purge ─────────────────────────────────────────────────────────────────────────────────────────────────────


def age(conn: Connection, job_id: int, seconds: float) -> None:
    for table in ("finished_jobs", "buried_jobs"):
        conn.execute(
            f"UPDATE queuety.{table} SET finished_at = finished_at - make_interval(secs => %s) WHERE id = %s",
            [seconds, job_id],
        )


def test_a_purge_takes_what_has_ended_and_nothing_else(conn):
    live = [parked(conn), pending(conn), running(conn, queue="slow").id]
    for make in (completed, completed, cancelled, buried):
        make(conn, queue="mail")
    told: list[int] = []

    assert verbs.purge(conn, dry_run=True) == Purged(2, 1, 1)
    assert verbs.purge(conn, batch=1, progress=told.append) == Purged(2, 1, 1)

    assert told == [1, 2, 3, 4]
    assert [job.id for job in search.jobs(conn)] == live[::-1]
    assert scalar(conn, "SELECT count(*) FROM queuety.job_events") == 0


def test_a_purge_takes_only_what_is_old_enough(conn):
    old, young = completed(conn), completed(conn)
    older, younger = buried(conn), buried(conn)
    age(conn, old, 120)
    age(conn, older, 120)

    assert verbs.purge(conn, older_than_s=60, dry_run=True) == Purged(1, 0, 1)
    assert verbs.purge(conn, older_than_s=60) == Purged(1, 0, 1)

    assert [job.id for job in search.jobs(conn)] == [younger, young]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [("completed", Purged(1, 0, 0)), (State.CANCELLED, Purged(0, 1, 0)), ("buried", Purged(0, 0, 1))],
)
def test_a_purge_takes_one_state_of_one_queue_if_told_so(conn, wanted, count):
    for queue in ("mail", "default"):
        for make in (completed, cancelled, buried):
            make(conn, queue=queue)

    assert verbs.purge(conn, state=wanted, queue="mail", dry_run=True) == count
    assert verbs.purge(conn, state=wanted, queue="mail") == count

    assert len(search.jobs(conn)) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "pending"),
        ("state", "processing"),
        ("state", "done"),
        ("older_than_s", -1),
        ("older_than_s", float("nan")),
        ("batch", 0),
        ("queue", "%"),
    ],
)
def test_a_purge_that_cannot_be_meant_is_refused(conn, name, value):
    completed(conn)

    with pytest.raises(UsageError):
        verbs.purge(conn, **{name: value})

    assert len(search.jobs(conn)) == 1


def test_a_purge_does_not_wait_for_locked_rows(conn, other):
    held, free = completed(conn), completed(conn)
    with other.transaction():
        other.execute("SELECT FROM queuety.finished_jobs WHERE id = %s FOR UPDATE", [held])

        assert verbs.purge(conn) == Purged(1, 0, 0)

    assert [job.id for job in search.jobs(conn)] == [held]
    assert free != held


# ── together ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_deadlock_is_tried_again_inside(database, conn, other):
    conn.execute("ALTER SYSTEM SET deadlock_timeout = '50ms'")
    conn.execute("SELECT pg_reload_conf()")
    first, second = pending(conn), pending(conn)
    met = threading.Barrier(2, timeout=10)
    runs: list[int] = []

    def swap(mine: Connection, one: int, two: int) -> None:
        tries = 0

        def work() -> None:
            nonlocal tries
            tries += 1
            mine.execute("UPDATE queuety.jobs SET error = NULL WHERE id = %s", [one])
            if tries == 1:
                met.wait()
            mine.execute("UPDATE queuety.jobs SET error = NULL WHERE id = %s", [two])

        transactions.repeated(mine, work)
        runs.append(tries)

    threads = [
        threading.Thread(target=swap, args=args) for args in ((conn, first, second), (other, second, first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(runs) == 2
    assert max(runs) > 1
    with psycopg.connect(database, autocommit=True) as again:
        again.execute("ALTER SYSTEM RESET deadlock_timeout")
        again.execute("SELECT pg_reload_conf()")


def test_a_transaction_of_the_callers_is_not_repeated(conn):
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        raise psycopg.errors.DeadlockDetected

    with pytest.raises(psycopg.errors.DeadlockDetected), conn.transaction():
        transactions.repeated(conn, work)

    assert runs == [1]


def test_all_verbs_at_once_lose_no_job_and_fail_nobody(database, conn):
    ids = [pending(conn, unique_key=f"k{number % 40}" if number % 3 else None) for number in range(120)]
    ids = sorted(set(ids))
    stop = time.monotonic() + 2.5
    failed: list[BaseException] = []
    deleted: set[int] = set()

    def delete(mine: Connection, job_id: int) -> None:
        verbs.delete(mine, job_id)
        deleted.add(job_id)

    def steps(mine: Connection, number: int) -> Iterator[Callable[[], Any]]:
        lanes = Lanes(("default",))
        for turn in range(1_000_000):
            job_id = ids[(turn * 7 + number * 13) % len(ids)]
            match number:
                case 0:
                    yield lambda job_id=job_id: verbs.cancel(mine, job_id)  # type: ignore[misc]
                case 1:
                    yield lambda job_id=job_id: verbs.retry(mine, job_id)  # type: ignore[misc]
                case 2 | 3:
                    yield lambda: verbs.retry_buried(mine)
                case 4:
                    yield lambda job_id=job_id: verbs.bury(mine, job_id, "why")  # type: ignore[misc]
                case 5 if job_id % 10 == 0:
                    yield lambda job_id=job_id: delete(mine, job_id)  # type: ignore[misc]
                case 5:
                    yield lambda: verbs.purge(mine, state="cancelled", older_than_s=3600)
                case _:
                    lanes.rewind()
                    jobs = claims.turn(mine, None, Want(lanes, 5, f"w#{number}", 60.0))[1]
                    for job in jobs:
                        end: Settlement = Bury(FAULT) if job.id % 2 else Again(0.0, True, FAULT, "retried")
                        yield lambda job=job, end=end: settle(mine, job, end)  # type: ignore[misc]

    def body(number: int) -> None:
        with connect(database) as mine:
            try:
                for step in steps(mine, number):
                    try:
                        step()
                    except (WrongState, JobNotFound):
                        pass
                    if time.monotonic() > stop:
                        return
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                failed.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert failed == []
    assert deleted
    assert sorted(set(ids) - deleted) == sorted(job.id for job in search.jobs(conn, limit=1000))
