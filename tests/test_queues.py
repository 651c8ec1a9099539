"""Pause, resume, and the numbers that are shown of queues and workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuety.errors import QueuetyError, UsageError
from queuety.model import NewJob
from queuety.store import claims, enqueue, queues, workers
from queuety.store import stats as numbers
from queuety.store.batch import Batch
from queuety.store.claims import Claimed, Want
from queuety.store.connect import Connection, connect
from queuety.store.lanes import Lanes
from queuety.store.queues import QueueRow
from tests.builders import claim_within
from tests.test_verbs import buried, cancelled, completed, heard, parked, pending, running


def claim(conn: Connection, *names: str) -> list[Claimed]:
    return claims.turn(conn, None, Want(Lanes(names), 10, "w#1", 60.0))[1]


def row(conn: Connection, name: str) -> QueueRow:
    [found] = [one for one in queues.listing(conn) if one.name == name]
    return found


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    with connect(database, name="other") as connection:
        yield connection


def test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(conn):
    mail, default = pending(conn, queue="mail"), pending(conn)

    queues.pause(conn, "mail")

    assert [job.id for job in claim(conn, "mail", "default")] == [default]
    assert queues.resume(conn, "mail") is True
    assert [job.id for job in claim(conn, "mail")] == [mail]


def test_a_pause_waits_for_the_claims_that_have_begun(database, conn, other):
    pending(conn)
    returned = threading.Event()

    def body() -> None:
        with connect(database) as mine:
            queues.pause(mine, "default")
        returned.set()

    with other.transaction():
        assert len(claim_within(other)) == 1  # its transaction stays open
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        assert not returned.wait(0.5)
        pending(conn)
        assert claim(conn, "default") == []  # others neither wait nor take from the queue
        assert not returned.is_set()
    assert returned.wait(5)
    thread.join()

    assert claim(conn, "default") == []


def test_a_claim_that_never_ends_is_named_and_the_queue_is_paused(conn, other, monkeypatch):
    monkeypatch.setattr(queues, "PATIENCE_S", 0.2)
    with other.transaction():
        claim_within(other)

        with pytest.raises(QueuetyError, match="is paused, but a claim") as error:
            queues.pause(conn, "default")

    assert str(other.info.backend_pid) in error.value.hint
    assert row(conn, "default").paused


def test_claims_that_begin_meanwhile_do_not_prolong_a_pause(database, conn):
    stop = threading.Event()

    def body() -> None:
        with connect(database) as mine:
            while not stop.is_set():
                claim(mine, "elsewhere")

    threads = [threading.Thread(target=body, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        for _ in range(10):
            queues.pause(conn, "default")
        took = time.monotonic() - began
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert took < 5


def test_a_pause_ends_by_itself_at_its_time(conn):
    job_id = pending(conn)
    queues.pause(conn, "default", until=datetime.now(UTC) + timedelta(seconds=1))
    assert claim(conn, "default") == []
    assert row(conn, "default").paused

    time.sleep(1.1)

    assert not row(conn, "default").paused
    assert [job.id for job in claim(conn, "default")] == [job_id]
    assert queues.resume(conn, "default") is False


@pytest.mark.parametrize(
    "until",
    [datetime(2999, 1, 1), datetime(2000, 1, 1, tzinfo=UTC), "2999-01-01", "soon"],
)
def test_a_pause_until_no_aware_time_ahead_is_refused(conn, until: Any):
    with pytest.raises(UsageError, match="until="):
        queues.pause(conn, "default", until=until)

    assert queues.listing(conn) == []


def test_pausing_again_changes_reason_and_end_but_not_the_beginning(conn):
    queues.pause(conn, "default", reason="first")
    first = row(conn, "default")
    end = datetime.now(UTC) + timedelta(hours=1)

    queues.pause(conn, "default", reason="second", until=end)

    second = row(conn, "default")
    assert (first.reason, first.paused_until) == ("first", None)
    assert (second.reason, second.paused_until) == ("second", end)
    assert second.paused_at == first.paused_at


def test_a_reason_is_cleaned_and_cut(conn):
    queues.pause(conn, "default", reason="no\x00pe " + "x" * 1000)

    reason = row(conn, "default").reason
    assert reason is not None
    assert reason.startswith("no\ufffdpe xxx")
    assert len(reason) == 500


@pytest.mark.parametrize("name", ["", "%", "a%", "a,b", "*", "a b", "o'hara", "a\tb", None, 1])
def test_what_is_no_name_of_a_queue_is_neither_paused_nor_resumed(conn, name: Any):
    for verb in (queues.pause, queues.resume):
        with pytest.raises(UsageError):
            verb(conn, name)


@pytest.mark.parametrize("name", ["_", "UPPER", "대기열", "a-b.c", "x" * 255])
def test_every_name_can_be_paused_and_stops_only_itself(conn, name):
    pending(conn, queue=name)
    beside = pending(conn, queue="a")

    queues.pause(conn, name)

    assert [job.id for job in claim(conn, name, "a")] == [beside]
    assert row(conn, name).paused
    assert queues.resume(conn, name)


def test_a_resume_wakes_a_pool_that_sleeps_on_the_queue(database, conn):
    conn.execute("INSERT INTO queuety.sleepers (pool, queue) VALUES (1, 'mail'), (2, 'mail')")
    with connect(database) as listener:
        listener.execute("LISTEN queuety")
        for name in ("mail", "default"):
            queues.pause(conn, name)

        assert queues.resume(conn, "default")
        assert queues.resume(conn, "mail")
        assert not queues.resume(conn, "mail")

        assert heard(listener) == ["q:mail"]


def test_what_is_not_paused_is_not_resumed(conn):
    assert queues.resume(conn, "default") is False
    assert queues.listing(conn) == []


def test_the_listing_counts_what_every_queue_holds(conn):
    running(conn, queue="mail")
    parked(conn, queue="mail")
    pending(conn, queue="mail", delay_s=3600.0)
    completed(conn, queue="done")
    for _ in range(2):
        pending(conn, queue="mail")
    conn.execute(
        "UPDATE queuety.jobs SET available_at = now() - interval '1 minute'"
        " WHERE id = (SELECT max(id) FROM queuety.jobs)"
    )
    queues.pause(conn, "Zero")

    listing = queues.listing(conn)

    assert [one.name for one in listing] == ["Zero", "mail"]
    mail = listing[1]
    assert (mail.due, mail.later, mail.parked, mail.processing) == (2, 1, 1, 1)
    assert mail.oldest_due_s is not None
    assert 60 <= mail.oldest_due_s < 120
    assert listing[0].oldest_due_s is None


def test_the_totals_are_those_of_all_queues(conn, monkeypatch):
    running(conn, queue="a")
    pending(conn, queue="b")
    parked(conn, queue="c")
    for _ in range(2):
        completed(conn)
    cancelled(conn)
    buried(conn)
    workers.register(conn, "worker", "host", ["a"], ["add"], 7)
    workers.register(conn, "keeper", "host", ["a"], None, 7)

    found = numbers.stats(conn)

    assert (found.due, found.later, found.parked, found.processing) == (1, 0, 1, 1)
    assert (found.completed, found.cancelled, found.buried, found.workers) == (2, 1, 1, 1)
    assert [one.name for one in found.queues] == ["a", "b", "c"]
    assert found.pending == 2
    assert not found.capped
    monkeypatch.setattr(numbers, "MOST_FINISHED", 2)
    assert numbers.stats(conn).capped


def test_the_listing_of_workers_says_what_each_holds(conn):
    mine = workers.register(conn, "worker", "host", ["a", "b"], ["add"], 7)
    idle = workers.register(conn, "worker", "host", ["a"], ["add"], 7)
    ids = [enqueue.one(conn, NewJob("add", "{}", queue="a")) for _ in range(2)]
    claims.turn(conn, None, Want(Lanes(("a",)), 5, f"host#{mine}", 60.0))

    first, second = workers.listing(conn)

    assert (first.id, first.jobs, first.queues) == (mine, tuple(ids), ("a", "b"))
    assert (second.id, second.jobs) == (idle, ())
    assert (first.kind, first.pool) == ("worker", 7)
    assert 0 <= first.silent_s < 60


def test_a_settlement_is_not_held_up_by_a_pause(conn):
    job = running(conn)
    queues.pause(conn, "default")
    batch = Batch(job.lease)
    batch.given_back.append(job.id)

    assert claims.turn(conn, batch, None)[0] == 1

    assert claim(conn, "default") == []
