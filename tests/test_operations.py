"""The SQL of docs/operations.md does what the page says, by the roles that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from queuety import Queuety, QueuetyError
from queuety.store import migrations, schema, workers
from queuety.store.connect import connect
from tests.daemon import daemon
from tests.documents import blocks, document

ROLES = ("shop_worker", "shop_web", "shop_reader", "shop_owner")


def statements(*sections: str) -> list[str]:
    found = [block for block in blocks(document("operations.md")) if block.language == "sql"]
    text = "".join(block.text for block in found if block.section in sections)
    return [one.strip() for one in text.split(";\n") if one.strip()]


@pytest.fixture
def url(server: str, empty: str) -> Iterator[Callable[[str], str]]:
    """The URL of a database set up by the page's statements, for one of the page's roles."""

    def of(role: str) -> str:
        return urlsplit(empty)._replace(netloc=f"{role}:secret@").geturl()

    with psycopg.connect(empty, autocommit=True) as admin:
        try:
            for statement in statements("The database"):
                admin.execute(statement)
            admin.execute("GRANT by_password TO shop_owner; ALTER ROLE shop_owner PASSWORD 'secret'")
            migrations.migrate(of("shop_owner"))
            for statement in statements("Rights"):
                admin.execute(statement)
            for role in ROLES[:3]:
                admin.execute(f"GRANT by_password TO {role}; ALTER ROLE {role} PASSWORD 'secret'")
            yield of
        finally:
            for role in ROLES:
                admin.execute(f"DROP OWNED BY {role} CASCADE")
                admin.execute(f"DROP ROLE {role}")


def test_the_workers_role_may_do_all_that_a_pool_and_an_operator_do(url, tmp_path):
    app = Queuety(url("shop_worker"))
    with connect(url("shop_worker")) as conn:
        schema.check_rights(conn)
    buried = app.enqueue("ok")
    app.bury(buried.id)
    app.retry(buried.id)
    app.cancel(app.enqueue("ok").id)
    app.enqueue_many([("ok", {})] * 3)
    app.pause("other")
    app.resume("other")

    with daemon(url("shop_worker"), command="flush", log=tmp_path / "log") as pool:
        assert pool.wait() == 0, pool.log()

    assert app.stats().completed == 4
    assert app.purge().total == 5


def test_the_workers_role_may_tend_partitions_but_not_change_the_schema(url):
    with connect(url("shop_worker")) as conn:
        for statement in statements("Retention and partitions"):
            conn.execute(statement)

        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("ALTER TABLE queuety.jobs ADD COLUMN mine text")


def test_tables_that_a_later_version_adds_are_the_workers_too(url):
    with connect(url("shop_owner")) as owner:
        owner.execute("CREATE TABLE queuety.later (id bigserial)")

    with connect(url("shop_worker")) as conn:
        conn.execute("INSERT INTO queuety.later DEFAULT VALUES")


def test_the_callers_role_enqueues_and_looks_up_and_does_nothing_else(url):
    app = Queuety(url("shop_web"))

    handle = app.enqueue("ok", unique_key="k", tags=["t"])
    app.enqueue_many([("ok", {})] * 3)

    assert handle.state() == "pending"
    with pytest.raises(QueuetyError, match="lacks a right"):
        app.cancel(handle.id)


def test_the_readers_role_looks_and_does_nothing_else(url):
    app = Queuety(url("shop_reader"))
    handle = Queuety(url("shop_web")).enqueue("ok")

    assert app.stats().due == 1
    assert [job.id for job in app.jobs()] == [handle.id]
    with connect(url("shop_reader")) as conn:
        assert workers.listing(conn) == []
        for statement in statements("What to watch"):
            conn.execute(statement)
    with pytest.raises(QueuetyError, match="lacks a right"):
        app.enqueue("ok")


@pytest.mark.parametrize("table", ["webhooks", "http_tokens"])
def test_the_readers_role_sees_no_secrets(url, table):
    with connect(url("shop_reader")) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(f"SELECT FROM queuety.{table}")


def test_the_other_statements_of_the_page_run(url, empty):
    with psycopg.connect(empty, autocommit=True) as admin:
        for statement in statements("Autovacuum", "Backups"):
            admin.execute(statement)


def test_no_statement_of_the_page_is_left_out():
    told = {block.section for block in blocks(document("operations.md")) if block.language == "sql"}

    assert told == {
        "The database", "Rights", "Retention and partitions", "What to watch", "Autovacuum", "Backups",
    }  # fmt: skip
