"""A transaction with an old snapshot is never told of a job that does not hold the key any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from queuety import DuplicateJob, JobHandle, Queuety
from queuety.model import Bury, Complete, ErrorInfo
from queuety.store import retention
from queuety.store.connect import Connection
from tests.test_unique import ENDS, GONE, claim, count, in_sql, run, write

STAYS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
LEVELS = [IsolationLevel.READ_COMMITTED, *STAYS]

Road = Callable[[Queuety, psycopg.Connection[Any]], Any]


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    app = Queuety(database)
    app.job(lambda n=0: n, name="add")  # type: ignore[call-overload]
    app.job(lambda n=0: n, name="once", unique=True)  # type: ignore[call-overload]
    yield app
    app.close()


def single(on_duplicate: str, **given: Any) -> Road:
    def road(app: Queuety, other: psycopg.Connection[Any]) -> Any:
        handle = write(app, connection=other, on_duplicate=on_duplicate, **given)
        return handle and handle.id

    road.__name__ = on_duplicate
    return road


def bulk(on_duplicate: str) -> Road:
    def road(app: Queuety, other: psycopg.Connection[Any]) -> Any:
        keyed = app.handlers["add"].using(unique_key="k", connection=other, on_duplicate=on_duplicate)
        return next(iter(keyed.enqueue_many([{"n": 1}]).ids), None)

    road.__name__ = f"bulk_{on_duplicate}"
    return road


def sql(on_duplicate: str) -> Road:
    def road(app: Queuety, other: psycopg.Connection[Any]) -> Any:
        return in_sql(other, f'{{"handler": "add", "unique_key": "k", "on_duplicate": "{on_duplicate}"}}')

    road.__name__ = f"sql_{on_duplicate}"
    return road


ROADS = [
    *(single(answer) for answer in ("return", "skip", "error", "replace")),
    *(bulk(answer) for answer in ("return", "skip", "error", "replace")),
    *(sql(answer) for answer in ("return", "skip", "error")),
]


def snapshot(database: str, level: IsolationLevel) -> psycopg.Connection[Any]:
    other = psycopg.connect(database)
    other.isolation_level = level
    other.execute("SELECT count(*) FROM queuety.jobs")
    return other


def answer(road: Road, app: Queuety, other: psycopg.Connection[Any]) -> Any:
    try:
        made = road(app, other)
        other.commit()
    except (DuplicateJob, psycopg.Error) as error:
        other.rollback()
        return type(error).__name__
    return made


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_has_ended_since_the_snapshot_holds_nothing(app, database, conn, level, end):
    first = write(app)
    with snapshot(database, level) as other:
        end(app, conn, first)

        made = answer(single("return"), app, other)

    if level in STAYS:
        assert (made, count(conn)) == ("SerializationFailure", 0)
    else:
        assert made != first.id
        assert count(conn) == 1


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("level", STAYS)
def test_every_road_fails_rather_than_to_be_told_of_a_job_that_has_ended(app, database, conn, level, road):
    first = write(app)
    with snapshot(database, level) as other:
        app.delete(first.id)

        assert answer(road, app, other) == "SerializationFailure"

    with snapshot(database, level) as other:
        assert answer(road, app, other) is not None
    assert count(conn) == 1


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("level", STAYS)
def test_a_run_that_has_ended_since_the_snapshot_holds_nothing(app, database, conn, level, road):
    write(app)
    [running] = claim(conn)
    with snapshot(database, level) as other:
        conn.execute("DELETE FROM queuety.jobs WHERE id = %s", [running.id])

        assert answer(road, app, other) == "SerializationFailure"


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("end", GONE)
@pytest.mark.parametrize("level", STAYS)
def test_a_window_that_is_gone_since_the_snapshot_holds_nothing(app, database, conn, level, end, road):
    first = write(app, unique_for=3600)
    with snapshot(database, level) as other:
        end(app, conn, first)

        assert answer(road, app, other) == "SerializationFailure"


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("level", STAYS)
def test_a_key_that_was_forgotten_since_the_snapshot_is_not_seen_twice(app, database, conn, level, road):
    """The row that was deleted would be seen beside the one that this transaction has written."""
    write(app)
    run(conn, Bury(ErrorInfo("ValueError", "no good")))
    with snapshot(database, level) as other:
        retention.prune_keys(conn)

        assert answer(road, app, other) == "SerializationFailure"
    assert count(conn) == 0


@pytest.mark.parametrize("level", STAYS)
def test_another_job_that_took_the_key_since_the_snapshot_is_not_overlooked(app, database, conn, level):
    write(app)
    with snapshot(database, level) as other:
        run(conn, Complete())
        write(app)

        assert answer(single("return"), app, other) == "SerializationFailure"
    assert count(conn) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_began_since_the_snapshot_still_holds_its_key_until_its_end(app, database, conn, level):
    """A long transaction would fail for ever if it did so for each renewal of the lease."""
    first = write(app)
    with snapshot(database, level) as other:
        claim(conn)
        conn.execute("UPDATE queuety.jobs SET lease_until = lease_until + interval '1 h'")

        assert answer(single("return"), app, other) == first.id
        assert answer(bulk("skip"), app, other) is None


@pytest.mark.parametrize("level", LEVELS)
def test_a_duplicate_of_a_job_of_the_same_transaction_is_that_job(app, database, conn, level):
    with snapshot(database, level) as other:
        first = write(app, connection=other)
        assert write(app, connection=other) == first
        assert bulk("return")(app, other) == first.id
        assert write(app, connection=other, on_duplicate="replace", payload={"n": 2}) == first
        assert sql("return")(app, other) == first.id
        other.commit()

    assert count(conn) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_transaction_that_was_told_of_a_job_holds_up_neither_its_run_nor_its_end(
    app, database, conn: Connection, level
):
    first = write(app)
    with snapshot(database, level) as other:
        assert write(app, connection=other) == JobHandle(app, first.id)
        conn.execute("SET lock_timeout = '1s'")

        run(conn, Complete())

        other.commit()
    assert first.job().state == "completed"
