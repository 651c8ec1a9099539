"""Migrations, and what a database without the right schema or rights says."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from queuety.errors import DatabaseUnreachable, RightsMissing, SchemaMismatch, UsageError
from queuety.store import migrations, schema, tables
from queuety.store.connect import Connection, connect

AWKWARD = "p%40s:/?#[]@!%%(x)s"
MIGRATE = "import sys; from queuety.store import migrations; print(migrations.migrate(sys.argv[1]))"


def test_migrating_twice_applies_once(empty: str) -> None:
    lines: list[str] = []

    first = migrations.migrate(empty, say=lines.append)
    second = migrations.migrate(empty, say=lines.append)

    assert (first, second) == (["0001", "0002", "0003", "0004"], [])
    assert lines == [
        "applied 0001: The first schema",
        "applied 0002: Admission: what limits a job, and the meters that it is admitted by",
        "applied 0003: Schedules: what is to be enqueued when, and the journal of their ticks",
        "applied 0004: Watching: what tells of jobs from outside, and who may ask",
    ]


def test_the_expected_revision_is_the_newest() -> None:
    assert migrations.head() == schema.EXPECTED


def test_a_url_or_a_keyword_string_will_do(empty: str) -> None:
    keywords = psycopg.conninfo.make_conninfo(empty)

    assert migrations.migrate(keywords) == ["0001", "0002", "0003", "0004"]


@pytest.mark.parametrize("rounds", [pytest.param(2), pytest.param(20, marks=pytest.mark.soak)])
def test_ten_may_migrate_an_empty_database_at_once(empty: str, rounds: int) -> None:
    for _ in range(rounds):
        with psycopg.connect(empty, autocommit=True) as conn:
            conn.execute("DROP SCHEMA IF EXISTS queuety CASCADE")

        ends = _at_once(10, empty)

        assert [code for code, _ in ends] == [0] * 10, ends
        assert sorted(text for _, text in ends) == ["['0001', '0002', '0003', '0004']", *["[]"] * 9]
        with connect(empty) as conn:
            assert conn.execute("SELECT count(*) FROM queuety.schema_version").fetchone() == (1,)
            assert _partitions(conn) == 2 * 9


def test_a_role_that_reads_serializably_by_default_may_migrate_in_a_crowd(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',"
            " current_database()); END $$"
        )

    ends = _at_once(4, empty)

    assert [code for code, _ in ends] == [0] * 4, ends


def test_the_printed_sql_makes_the_same_schema(empty: str, conn: Connection) -> None:
    text = migrations.sql()

    with psycopg.connect(empty, autocommit=True) as other:
        other.execute(text.encode())
        made = _catalog(other)

    assert made == _catalog(conn)
    assert migrations.migrate(empty) == []


def test_jobs_that_wait_and_run_keep_their_unique_keys(empty: str) -> None:
    text = io.StringIO()
    config = migrations._config()
    config.output_buffer = text
    command.upgrade(config, "0001", sql=True)
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute(text.getvalue().encode())
        conn.execute("INSERT INTO queuety.jobs (handler, unique_key) VALUES ('a', 'k'), ('a', NULL)")

    migrations.migrate(empty)

    with connect(empty) as conn:
        again = conn.execute("""SELECT queuety.enqueue('{"handler": "a", "unique_key": "k"}')""").fetchone()
        assert again == conn.execute("SELECT id FROM queuety.jobs WHERE unique_key = 'k'").fetchone()


def test_tables_and_migrations_agree(database: str) -> None:
    assert _differences(database) == []


def test_a_password_may_hold_any_sign(database: str, conn: Connection, login: Callable[..., str]) -> None:
    url = login("percent", AWKWARD)
    conn.execute("DROP SCHEMA queuety CASCADE")
    conn.execute(f"GRANT CREATE ON DATABASE {conn.info.dbname} TO percent")

    assert migrations.migrate(url) == ["0001", "0002", "0003", "0004"]

    with connect(url) as own:
        schema.check_schema(own)
        schema.check_rights(own)
        assert own.info.password == AWKWARD


def test_a_wrong_password_is_unreachable_and_stays_secret(login: Callable[..., str]) -> None:
    url = login("percent", AWKWARD)
    wrong = url.replace("p%2540s", "WRONG%2540s")

    with pytest.raises(DatabaseUnreachable) as caught:
        migrations.migrate(wrong)

    assert "\n" not in str(caught.value)
    assert "WRONG" not in str(caught.value)
    assert "password authentication failed" in str(caught.value)


def test_a_server_that_is_away_is_unreachable_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        migrations.migrate(f"postgresql://me:geheim@/queue?host={tmp_path}")

    assert "geheim" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_url_that_cannot_be_parsed_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        migrations.migrate("postgresql://me:ge%heim@host/queue")

    assert "heim" not in str(caught.value)


def test_a_role_without_the_right_to_create_is_told_which(
    conn: Connection, login: Callable[..., str]
) -> None:
    url = login("nobody_much")
    conn.execute("DROP SCHEMA queuety CASCADE")

    with pytest.raises(RightsMissing, match="'nobody_much' lacks the right CREATE on the database"):
        migrations.migrate(url)


def test_a_schema_made_for_the_role_is_enough(conn: Connection, login: Callable[..., str]) -> None:
    url = login("tenant")
    conn.execute("DROP SCHEMA queuety CASCADE")
    conn.execute("CREATE SCHEMA queuety AUTHORIZATION tenant")

    assert migrations.migrate(url) == ["0001", "0002", "0003", "0004"]


def test_a_foreign_schema_of_our_name_is_left_alone(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA queuety; CREATE TABLE queuety.jobs (mine text)")

        with pytest.raises(SchemaMismatch, match="not ours"):
            migrations.migrate(empty)

        assert conn.execute("SELECT count(*) FROM pg_class WHERE relname = 'schema_version'").fetchone() == (
            0,
        )


def test_a_database_without_utf8_is_refused(server: str, empty: str) -> None:
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(UsageError, match="LATIN1"):
                migrations.migrate(empty.replace(empty.split("?")[0].rsplit("/", 1)[1], "latin"))
        finally:
            conn.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_read_only_server_is_told_plainly(empty: str) -> None:
    with pytest.raises(DatabaseUnreachable, match="takes no writes"):
        migrations.migrate(f"{empty}&options=-cdefault_transaction_read_only%3Don")


def test_a_missing_schema_is_told(empty: str) -> None:
    with (
        connect(empty) as conn,
        pytest.raises(SchemaMismatch, match=r"no Queuety schema.*queuety db migrate"),
    ):
        schema.check_schema(conn)


@pytest.mark.parametrize(("revision", "word"), [("0000", "older"), ("9999", "newer")])
def test_another_revision_is_told(conn: Connection, revision: str, word: str) -> None:
    conn.execute("UPDATE queuety.schema_version SET version_num = %s", [revision])

    with pytest.raises(SchemaMismatch, match=word):
        schema.check_schema(conn)


def test_migrating_a_newer_schema_is_refused(database: str, conn: Connection) -> None:
    conn.execute("UPDATE queuety.schema_version SET version_num = '9999'")

    with pytest.raises(SchemaMismatch, match="9999"):
        migrations.migrate(database)


def test_a_check_leaves_an_open_transaction_usable(empty: str) -> None:
    with connect(empty, autocommit=False) as conn:
        conn.execute("CREATE TEMP TABLE mine (n int)")

        assert schema.current(conn) is None

        conn.execute("INSERT INTO mine VALUES (1)")


def test_missing_rights_are_told_by_name(conn: Connection, login: Callable[..., str]) -> None:
    url = login("reader")
    with connect(url) as own, pytest.raises(RightsMissing, match="permission denied for schema queuety"):
        schema.check_schema(own)
    conn.execute("GRANT USAGE ON SCHEMA queuety TO reader")
    with connect(url) as own, pytest.raises(RightsMissing, match="schema_version"):
        schema.check_schema(own)
    conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA queuety TO reader")

    with connect(url) as own:
        schema.check_schema(own)
        with pytest.raises(RightsMissing, match="INSERT, UPDATE, DELETE on jobs; USAGE on leases"):
            schema.check_rights(own)


def test_the_hot_path_does_not_import_alembic_or_sqlalchemy() -> None:
    code = "import sys, queuety.store.schema, queuety.store.retention; "
    code += "print([m for m in ('alembic', 'sqlalchemy') if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def _at_once(count: int, url: str) -> list[tuple[int, str]]:
    env = {**os.environ, "PYTHONPATH": str(migrations.location().parent)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for _ in range(count)
    ]
    texts = [process.communicate(timeout=60)[0].strip() for process in running]
    return [(process.returncode, text) for process, text in zip(running, texts, strict=True)]


def _partitions(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE relkind = 'r'"
    )
    return int(row.fetchall()[0][0])


def _catalog(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Everything that the schema holds, as text."""
    return conn.execute(
        """
        SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
        FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'queuety'::regnamespace
        UNION ALL
        SELECT 'relation', c.relname, c.relkind::text, array_to_string(c.reloptions, ' '), c.relispartition,
               pg_get_expr(c.relpartbound, c.oid), obj_description(c.oid)
        FROM pg_class AS c WHERE c.relnamespace = 'queuety'::regnamespace
        UNION ALL
        SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL, NULL
        FROM pg_constraint WHERE connamespace = 'queuety'::regnamespace
        UNION ALL
        SELECT 'function', proname, pg_get_functiondef(oid), NULL, NULL, NULL, obj_description(oid)
        FROM pg_proc WHERE pronamespace = 'queuety'::regnamespace
        ORDER BY 1, 2, 3
        """
    ).fetchall()


def _differences(url: str) -> list[Any]:
    def wanted(name: str | None, kind: str, _: object) -> bool:
        if kind == "schema":
            return name == "queuety"
        # Partitions are made and dropped by the day; no metadata lists them.
        return not (kind == "table" and re.search(r"_(\d{8}|default)$", name or ""))

    def compared(item: Any, name: str | None, kind: str, reflected: bool, _: object) -> bool:
        return not (kind == "table" and item.info.get("view"))

    # Else our schema is the default one for a role of its name, and is compared as if it had none.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, options="-csearch_path=public")
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": "schema_version",
                "version_table_schema": "queuety",
                "include_schemas": True,
                "include_name": wanted,
                "include_object": compared,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        found = compare_metadata(context, tables.metadata)
    engine.dispose()
    each = [one for group in found for one in (group if isinstance(group, list) else [group])]
    # Comments stand in the migration alone.
    return [one for one in each if not one[0].endswith("_comment")]
