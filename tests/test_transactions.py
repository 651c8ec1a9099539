"""Jobs in the caller's transaction, and effects in the transaction that completes a job."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from queuety import Queuety
from queuety.errors import PayloadError
from queuety.store.connect import Connection, connect
from tests.daemon import Daemon, daemon, read_ledger, until

APP = "tests.apps.data:app"
INSERT = "INSERT INTO effects (key) VALUES ('mine')"

Work = Callable[[Callable[[Any], None]], None]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transactions") / "ledger"


@pytest.fixture(scope="module")
def pool(shared: str, ledger: Path) -> Iterator[Daemon]:
    """One pool for all tests here; it must outlive them all."""
    with connect(shared) as conn:
        conn.execute("CREATE TABLE effects (key text, attempt int)")
    env = {"QUEUETY_STALE_TIMEOUT": "2", "QUEUETY_UNKNOWN_HANDLER_GRACE": "1.5"}
    with daemon(
        shared,
        "--sleep=0.1",
        "--workers=2",
        app=APP,
        ledger=ledger,
        log=ledger.with_name("log"),
        env=env,
    ) as running:
        running.ready(2)
        yield running
        assert running.stop() == 0


@pytest.fixture
def conn(shared: str, pool: Daemon) -> Iterator[Connection]:
    with connect(shared) as connection:
        connection.execute("TRUNCATE effects")
        yield connection


@pytest.fixture
def app(shared: str, pool: Daemon) -> Iterator[Queuety]:
    queue = Queuety(shared)
    yield queue
    queue.close()


# ── the caller's transaction ──────────────────────────────────────────────────────────────────────


def with_psycopg(url: str, body: Callable[[Any], None], commit: bool) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(INSERT)
        body(conn)
        conn.commit() if commit else conn.rollback()


def with_psycopg_block(url: str, body: Callable[[Any], None], commit: bool) -> None:
    with psycopg.connect(url, autocommit=True) as conn, conn.transaction():
        conn.execute(INSERT)
        body(conn)
        if not commit:
            raise psycopg.Rollback


def with_session(url: str, body: Callable[[Any], None], commit: bool) -> None:
    with Session(sa.create_engine(alchemy(url), poolclass=sa.NullPool)) as session:
        session.execute(sa.text(INSERT))
        body(session)
        session.commit() if commit else session.rollback()


def with_connection(url: str, body: Callable[[Any], None], commit: bool) -> None:
    with sa.create_engine(alchemy(url), poolclass=sa.NullPool).connect() as conn:
        conn.execute(sa.text(INSERT))
        body(conn)
        conn.commit() if commit else conn.rollback()


def with_savepoint(url: str, body: Callable[[Any], None], commit: bool) -> None:
    """Only the job's savepoint is given up; the rest is committed."""
    with Session(sa.create_engine(alchemy(url), poolclass=sa.NullPool)) as session:
        session.execute(sa.text(INSERT))
        savepoint = session.begin_nested()
        body(session)
        savepoint.commit() if commit else savepoint.rollback()
        session.commit()


def with_async_session(url: str, body: Callable[[Any], None], commit: bool) -> None:
    _async(alchemy(url), body, commit)


def with_asyncpg(url: str, body: Callable[[Any], None], commit: bool) -> None:
    if importlib.util.find_spec("asyncpg") is None:
        pytest.skip("asyncpg is not installed")
    _async(alchemy(url).set(drivername="postgresql+asyncpg"), body, commit)


def _async(url: sa.URL, body: Callable[[Any], None], commit: bool) -> None:
    async def run() -> None:
        engine = create_async_engine(url, poolclass=sa.NullPool)
        async with AsyncSession(engine) as session:
            await session.execute(sa.text(INSERT))
            await session.run_sync(body)
            await (session.commit() if commit else session.rollback())
        await engine.dispose()

    asyncio.run(run())


def alchemy(url: str) -> sa.URL:
    plain = sa.make_url(url)
    return plain.set(drivername="postgresql+psycopg")


ROADS = [
    with_psycopg,
    with_psycopg_block,
    with_session,
    with_connection,
    with_savepoint,
    with_async_session,
    with_asyncpg,
]


@pytest.mark.parametrize("road", ROADS)
def test_a_job_of_the_callers_transaction_starts_only_after_the_commit_and_sees_its_rows(
    app, shared, conn, ledger, road
):
    made: list[Any] = []
    committing: list[float] = []

    def body(conn: Any) -> None:
        made.append(
            app.enqueue("await_row", {"key": "mine"}, connection=conn, unique_key="한글 key", tags=["a"])
        )
        made.extend(app.enqueue_many([("await_row", {"key": "mine"})] * 2, connection=conn))
        time.sleep(0.4)
        committing.append(time.monotonic())

    road(shared, body, True)
    results = [job.result(10) for job in made]

    assert results == [True] * 3
    ids = {job.id for job in made}
    assert min(one.at for one in read_ledger(ledger) if one.job in ids) > committing[0]


@pytest.mark.parametrize("road", ROADS)
def test_a_job_of_the_callers_transaction_dies_with_its_rollback(app, shared, conn, ledger, road):

    before, jobs = {one.job for one in read_ledger(ledger)}, count(conn)

    def body(connection: Any) -> None:
        app.enqueue("ok", connection=connection, unique_key="key")
        app.enqueue_many([("ok", {})] * 3, connection=connection)
        time.sleep(0.3)

    road(shared, body, False)
    after = app.enqueue("ok", unique_key="key")

    assert after.wait(10).state == "completed"
    assert {one.job for one in read_ledger(ledger)} - before == {after.id}
    assert count(conn) == jobs + 1


@pytest.mark.parametrize("bulk", [[("ok", {})] * 3, [("add", {"a": 1, "b": 2})]])
def test_a_bulk_that_is_the_first_thing_in_the_callers_transaction_dies_with_its_rollback(
    app, shared, conn, bulk
):
    jobs = count(conn)

    with psycopg.connect(shared) as connection:
        app.enqueue_many(bulk, connection=connection)
        connection.rollback()
    with Session(sa.create_engine(alchemy(shared), poolclass=sa.NullPool)) as session:
        app.enqueue_many(bulk, connection=session)
        app.enqueue("ok", unique_key="first", on_duplicate="replace", connection=session)
        session.rollback()

    assert count(conn) == jobs


@pytest.mark.parametrize("road", ROADS)
def test_a_refused_enqueue_leaves_the_callers_transaction_usable(app, shared, conn, road):

    def body(connection: Any) -> None:
        for refused in ({"value": float("nan")}, {"value": "a\0b"}):
            with pytest.raises(Exception, match="payload"):
                app.enqueue("echo", refused, connection=connection)
        app.enqueue("ok", connection=connection, unique_key="taken", delay=60)
        with pytest.raises(Exception, match="taken"):
            app.enqueue("ok", connection=connection, unique_key="taken", on_duplicate="error")

    jobs = count(conn)
    road(shared, body, True)

    assert conn.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    assert count(conn) == jobs + 1
    conn.execute("DELETE FROM queuety.jobs")


@pytest.mark.parametrize("road", ROADS)
def test_of_a_bulk_with_a_bad_job_nothing_is_left_though_the_caller_commits(app, shared, conn, road):
    jobs = count(conn)

    def body(connection: Any) -> None:
        with pytest.raises(PayloadError, match="item 2"):
            app.enqueue_many([("ok", {}), ("ok", {}), ("echo", {"value": {1}})], connection=connection)

    road(shared, body, True)

    assert conn.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    assert count(conn) == jobs


@pytest.mark.parametrize("road", ROADS)
def test_every_option_takes_the_callers_road(app, shared, conn, road):
    made: list[int] = []

    def body(connection: Any) -> None:
        made.append(
            app.enqueue(
                "echo", {"value": "a:b %s \\ \u2028"}, connection=connection, queue="q", priority="urgent",
                delay="1h", max_attempts=9, tags=["x", "y"], unique_key="k%:s", backoff=[1, 2],
            ).id
        )  # fmt: skip

    road(shared, body, True)
    job = app.find(made[0])
    app.delete(job.id)

    assert job.payload == {"value": "a:b %s \\ \u2028"}
    assert (job.queue, job.priority, job.max_attempts, job.tags, job.unique_key) == (
        "q", 0, 9, ("x", "y"), "k%:s",
    )  # fmt: skip
    assert 3590 < (job.available_at - job.created_at).total_seconds() < 3610


# ── a job for nobody ──────────────────────────────────────────────────────────────────────────────


def test_a_job_whose_handler_nobody_has_waits_and_is_then_buried_with_its_name(app):
    job = app.enqueue("no.such.handler", max_attempts=2)

    assert app.enqueue("ok").wait(10).state == "completed"
    waiting = until(lambda: (found := job.job()).parked_on and found)
    ended = job.wait(15)

    assert (waiting.state, waiting.attempts, waiting.parked_on) == ("pending", 0, "handler:no.such.handler")
    assert (ended.state, ended.error["type"]) == ("buried", "UnknownHandler")
    assert "no.such.handler" in ended.error["message"]


# ── the transaction that completes the job ────────────────────────────────────────────────────────


def effect_rows(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT key, attempt FROM effects ORDER BY 1, 2").fetchall()


@pytest.mark.parametrize(
    ("then", "attempt"),
    [("return", 1), ("kill inside", 2), ("raise inside", 2), ("kill after", 1), ("raise after", 1)],
)
def test_effects_in_the_jobs_transaction_happen_exactly_once(app, conn, then, attempt):
    job = app.enqueue("effect", {"key": "k", "then": then}, backoff=[0.1], max_attempts=3)

    ended = job.wait(15)
    time.sleep(0.3)  # whatever is still to come

    assert (ended.state, ended.attempts) == ("completed", attempt)
    assert effect_rows(conn) == [("k", attempt)]
    assert job.job() == job.wait(1)


def test_the_result_of_a_job_that_completed_in_its_transaction_is_kept(app, conn):
    job = app.enqueue("effect", {"key": "k"})

    assert until(lambda: job.job().result) == "the result"


def test_a_lost_lease_rolls_the_jobs_transaction_back(app, conn, ledger):
    job = app.enqueue("effect", {"key": "k", "then": "sleep inside"}, backoff=[0.1], max_attempts=3)
    until(lambda: any((one.job, one.what) == (job.id, "inside") for one in read_ledger(ledger)))

    # As a recovery elsewhere would, after too long a silence.
    conn.execute("UPDATE queuety.jobs SET lease_until = now() - interval '1 s' WHERE id = %s", [job.id])
    recovered = app.recover()
    ended = job.wait(15)
    time.sleep(1.0)

    assert recovered.retried == 1
    assert (ended.state, ended.attempts) == ("completed", 2)
    assert effect_rows(conn) == [("k", 2)]


# ── progress ──────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_bounded_and_its_last_value_always_arrives(app):
    job = app.enqueue("progress", {"steps": 20_000})

    job.wait(20)
    told = [event.data for event in job.events() if event.type == "progress"]

    assert len(told) < 40
    assert told[-1] == {"step": 20_000, "total": 20_000, "message": "step 20000"}
    assert [event["step"] for event in told] == sorted(event["step"] for event in told)


def test_partial_results_arrive_in_order_before_the_end_the_first_and_the_last_always(app):
    job = app.enqueue("partials", {"count": 50})

    assert job.result(20) == 50
    told = [event.data["number"] for event in job.events() if event.type == "partial"]

    assert (told[0], told[-1]) == (0, 49)
    assert told == sorted(told)


def count(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone()
    assert row is not None
    return int(row[0])
