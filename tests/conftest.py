"""A real PostgreSQL for the tests.

    server      URL of one embedded server for the session, fsync off
    template    a migrated database in it, never connected to again
    database    URL of a fresh migrated database, dropped afterwards
    shared      as database, but one for all tests of a module
    empty       URL of a fresh database without our schema, dropped afterwards
    conn        an autocommit connection to `database`
    login       a function (role, password) -> URL of `database` for a new role that logs in by password
    data_login  URL of `database` for a role that may read and write our tables and no more

QUEUETY_TEST_PG is the major version, taken from the wheel or /usr/lib/postgresql/<major>; without it, the
embedded launcher's choice.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from queuety import embedded
from queuety.store import migrations
from queuety.store.connect import Connection, connect

TEMPLATE = "template_queuety"
_migrated: set[str] = set()
_numbers = itertools.count(1)
_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "200"}


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of the server's own database, as its superuser."""
    with pytest.MonkeyPatch.context() as patch:
        if major := os.environ.get("QUEUETY_TEST_PG"):
            installed = Path("/usr/lib/postgresql", major, "bin")
            if installed.is_dir():
                patch.setenv("QUEUETY_PG_BIN", str(installed))
            found = embedded.find_binaries()
            assert found, "no PostgreSQL here"
            assert str(found.major) == major, f"no PostgreSQL {major} here"
        # Not pytest's own folder: as root the server runs as another user, who may not enter that.
        directory = Path(tempfile.mkdtemp(prefix="queuety-test-"))
        running = embedded.start(directory, settings=_FAST)
    try:
        _let_passwords_in(running.url)
        yield running.url
    finally:
        running.release()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def template(server: str) -> str:
    """Stands for the migrated database to copy."""
    return TEMPLATE


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    with _database(server, template) as url:
        yield url


@pytest.fixture(scope="module")
def shared(server: str, template: str) -> Iterator[str]:
    with _database(server, template) as url:
        yield url


@pytest.fixture
def empty(server: str) -> Iterator[str]:
    with _database(server, "template1") as url:
        yield url


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database, name="test") as connection:
        yield connection


@pytest.fixture
def login(server: str, database: str) -> Iterator[Callable[..., str]]:
    """Make a role that logs in by password; it has no rights but those of everybody."""
    made: list[str] = []

    def make(role: str, password: str = "secret") -> str:
        _run(
            server,
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE by_password").format(
                sql.Identifier(role), sql.Literal(password)
            ),
        )
        made.append(role)
        parts = urlsplit(database)
        return parts._replace(netloc=f"{quote(role, safe='')}:{quote(password, safe='')}@").geturl()

    yield make
    for role in made:
        for url in (database, server):
            _run(url, sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        _run(server, sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture
def data_login(database: str, login: Callable[..., str]) -> str:
    url = login("queuety_app")
    for grant in (
        "GRANT USAGE ON SCHEMA queuety TO queuety_app",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuety TO queuety_app",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO queuety_app",
    ):
        _run(database, sql.SQL(grant))
    return url


@contextmanager
def _database(server: str, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    source = _migrated_today(server) if template == TEMPLATE else template
    _run(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*map(sql.Identifier, (name, source))))
    try:
        yield _with_database(server, name)
    finally:
        _run(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _migrated_today(server: str) -> str:
    """Name of a database migrated today, in UTC: a run that goes on past midnight has one with the new days."""
    name = f"{TEMPLATE}_{datetime.now(UTC):%Y%m%d}"
    if name not in _migrated:
        _run(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        migrations.migrate(_with_database(server, name))
        _migrated.add(name)
    return name


def _with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def _run(url: str, statement: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def _let_passwords_in(server: str) -> None:
    """The embedded server knows nobody but its owner; members of by_password give a password instead."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE ROLE by_password NOLOGIN")
        row = connection.execute("SHOW hba_file").fetchone()
        assert row is not None
        hba = Path(row[0])
        hba.write_text(f"local all +by_password scram-sha-256\n{hba.read_text()}")
        connection.execute("SELECT pg_reload_conf()")
