"""What is said of a unique job has one meaning or is refused; a missing right is told with its way out."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from queuety import Queuety, UsageError
from queuety.errors import RightsMissing, SchemaMismatch
from queuety.store.connect import connect
from tests.test_cli import queuety
from tests.test_unique import count, write


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    app = Queuety(database)
    app.job(lambda n=0: n, name="add")  # type: ignore[call-overload]
    app.job(lambda n=0: n, name="once", unique=True)  # type: ignore[call-overload]
    yield app
    app.close()


@pytest.mark.parametrize("unique", [True, False])
def test_a_key_of_ones_own_and_unique_exclude_each_other(app, conn, unique):
    with pytest.raises(UsageError, match=f"unique={unique} and unique_key exclude each other"):
        app.handlers["once"].using(unique=unique, unique_key="k")
    with pytest.raises(UsageError, match="exclude each other"):
        app.enqueue("add", {}, unique=unique, unique_key="k")

    assert count(conn) == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--unique", "--unique-key=k"), "unique=True and unique_key exclude each other"),
        (("--unique", "--unique-for=99999999d"), "give 1ms to 36525d"),
        (("--unique", "--unique-for=0"), "give 1ms to 36525d"),
        (("--rate-limit=1/99999999d",), "give 100ms to 1d"),
    ],
)
def test_a_command_names_what_it_takes(database, conn, options, what):
    done = queuety("enqueue", "add", *options, url=database)

    assert done.returncode == 2
    assert what in done.stderr
    assert count(conn) == 0


def test_a_line_with_a_key_of_its_own_wins_over_what_is_said_for_all(database, conn, tmp_path):
    lines = tmp_path / "jobs"
    lines.write_text('{"handler": "add", "unique_key": "k"}\n{"handler": "add"}\n{"handler": "add"}\n')

    assert queuety("enqueue", "--many", str(lines), "--unique", url=database).returncode == 0

    keys = sorted(key for (key,) in conn.execute("SELECT unique_key FROM queuety.jobs"))
    assert [key[:7] for key in keys] == ["k", "sha256:"]


def test_a_scope_without_unique_is_for_the_jobs_that_are_given_a_key(app, conn):
    app.job(lambda n=0: n, name="hourly", unique_for="1h")

    app.enqueue("hourly")
    app.enqueue("hourly")
    app.enqueue("hourly", unique_key="k")

    assert count(conn) == 3
    assert conn.execute("SELECT key, until FROM queuety.unique_keys").fetchall() == [("k", "window")]


@pytest.fixture
def enqueuer(login, conn) -> str:
    url: str = login("u_only_enqueues")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO u_only_enqueues")
    conn.execute("GRANT SELECT, INSERT ON queuety.jobs TO u_only_enqueues")
    conn.execute("GRANT SELECT ON queuety.sleepers TO u_only_enqueues")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO u_only_enqueues")
    return url


def test_a_role_that_may_not_replace_is_told_what_it_lacks_on_every_connection(app, conn, enqueuer):
    first = write(app, payload={"n": 1})
    own = Queuety(enqueuer)
    own.job(lambda n=0: n, name="add")  # type: ignore[call-overload]
    engine = create_engine(enqueuer.replace("postgresql://", "postgresql+psycopg://"))

    with connect(enqueuer) as raw, Session(engine) as session:
        for connection in (None, raw, session):
            with pytest.raises(RightsMissing, match=r"replace.* UPDATE ON queuety\.jobs.*job_events"):
                write(own, on_duplicate="replace", connection=connection, payload={"n": 2})
            bulk = own.handlers["add"].using(unique_key="k", on_duplicate="replace", connection=connection)
            with pytest.raises(RightsMissing, match="replace"):
                bulk.enqueue_many([{"n": 2}])

    engine.dispose()
    own.close()
    assert first.job().payload == {"n": 1}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT * FROM my_table", psycopg.errors.UndefinedTable),
        ("SELECT * FROM my_schema.my_table", psycopg.errors.UndefinedTable),
        ("CREATE TABLE my_schema.my_table ()", psycopg.errors.InvalidSchemaName),
        ("SELECT my_column FROM pg_class", psycopg.errors.UndefinedColumn),
        ("SELECT * FROM queuety.no_such", SchemaMismatch),
    ],
)
def test_an_error_about_the_callers_own_tables_stays_what_it_is(app, query, error):
    with pytest.raises(error), app.connection() as own:
        own.execute(query)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT * FROM his.table_of_his", psycopg.errors.InsufficientPrivilege),
        ("SELECT * FROM queuety.jobs", RightsMissing),
    ],
)
def test_a_right_on_the_callers_own_tables_is_his_own_business(login, conn, query, error):
    conn.execute("CREATE SCHEMA his CREATE TABLE table_of_his ()")
    his = Queuety(login("u_his"))
    conn.execute("GRANT USAGE ON SCHEMA his TO u_his")

    with pytest.raises(error), his.connection() as own:
        own.execute(query)
    his.close()
