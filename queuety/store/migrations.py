"""Create the schema and bring it up to date: the only place that runs DDL."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg import errors as pg

from queuety.errors import DatabaseUnreachable, QueuetyError, RightsMissing, SchemaMismatch, UsageError
from queuety.store import schema
from queuety.store.connect import Connection, connect, lost, unreachable

OLDEST_SERVER = 130000  # as server_version_num


def migrate(url: str, *, say: Callable[[str], object] = lambda line: None) -> list[str]:
    """Bring the schema up to date; return the revisions applied, oldest first.

    url: any libpq URL or keyword string.  say: is told one line for each revision.
    All of it is one transaction. Any number may run at once: they wait for each other.
    Raises DatabaseUnreachable, RightsMissing, SchemaMismatch (newer, or not ours),
    UsageError (server or encoding).
    """
    # The connection is READ COMMITTED: who waited for another migration must see what that one wrote.
    with connect(url, name="queuety migrate", autocommit=False) as conn:
        conn.prepare_threshold = None  # a migration sends many statements as one text
        try:
            if not _needed(conn):
                return []
            return _upgrade(conn, say)
        except psycopg.Error as error:
            raise _explain(error, conn) from error
        except sa.exc.DBAPIError as error:
            if not isinstance(error.orig, psycopg.Error):
                raise
            raise _explain(error.orig, conn) from error.orig
        except CommandError as error:  # somebody with a newer version was faster
            raise SchemaMismatch(str(error), "update Queuety here") from error


def sql() -> str:
    """The whole schema as SQL text, for a database administrator to read or to run."""
    out = io.StringIO()
    config = _config()
    config.output_buffer = out
    command.upgrade(config, "head", sql=True)
    return out.getvalue()


def head() -> str:
    """The newest revision that this version carries."""
    return str(ScriptDirectory(str(location())).get_current_head())


def location() -> Path:
    """The directory of the migrations: inside the installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise QueuetyError("Queuety's migrations are not installed", "reinstall the package")


def _needed(conn: Connection) -> bool:
    """Whether there is anything to apply, and if so, that it can be."""
    _check_server(conn)
    found = schema.current(conn)
    if found == head():
        return False
    if found is not None and found not in _known():
        raise SchemaMismatch(
            f"the schema is at revision {found}, which this version does not know (it knows {head()})",
            "update Queuety here",
        )
    _check_right_to_create(conn)
    conn.rollback()
    return True


def _upgrade(conn: Connection, say: Callable[[str], object]) -> list[str]:
    applied: list[str] = []

    def note(*, step: object, **_: object) -> None:
        revision = str(step.up_revision_id)  # type: ignore[attr-defined]
        applied.append(revision)
        say(f"applied {revision}: {step.up_revision.doc}")  # type: ignore[attr-defined]

    config = _config()
    config.attributes["on_version_apply"] = note
    # SQLAlchemy is handed our connection and never sees a URL.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: conn, poolclass=sa.NullPool, use_native_hstore=False
    )
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return applied


def _config() -> Config:
    config = Config()
    # The only value that goes through the configuration's parser.
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    return config


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory(str(location())).walk_revisions()}


def _check_server(conn: Connection) -> None:
    if conn.info.server_version < OLDEST_SERVER:
        version = conn.info.parameter_status("server_version")
        raise UsageError(
            f"the server is PostgreSQL {version}; Queuety needs 13 or newer", "upgrade the server"
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise UsageError(
            f"the database {conn.info.dbname!r} has the encoding {encoding}; Queuety needs UTF8",
            "create one with ENCODING 'UTF8' TEMPLATE template0",
        )


def _check_right_to_create(conn: Connection) -> None:
    row = conn.execute(
        """
        SELECT has_schema_privilege(oid, 'CREATE'), has_database_privilege(current_database(), 'CREATE')
        FROM (SELECT 1) AS one LEFT JOIN pg_namespace ON nspname = 'queuety'
        """
    ).fetchone()
    assert row is not None
    in_schema, in_database = row
    if in_schema is False:
        raise RightsMissing(
            f"the role {conn.info.user!r} lacks the right CREATE on the schema queuety",
            "migrate as the owner of the schema",
        )
    if in_schema is None and not in_database:
        raise RightsMissing(
            f"the role {conn.info.user!r} lacks the right CREATE on the database {conn.info.dbname!r}",
            "migrate as its owner, or let the owner run: CREATE SCHEMA queuety AUTHORIZATION <role>",
        )


def _explain(error: psycopg.Error, conn: Connection) -> QueuetyError:
    said = error.diag.message_primary or str(error).partition("\n")[0]
    if isinstance(error, pg.InsufficientPrivilege):
        return RightsMissing(
            f"the role {conn.info.user!r} may not migrate: {said}", "migrate as the owner of the schema"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return DatabaseUnreachable(f"the server takes no writes: {said}", "connect to the primary")
    if lost(error) and conn.broken:
        return unreachable(error)
    if isinstance(error, (pg.DuplicateTable, pg.DuplicateObject, pg.DuplicateFunction)):
        return SchemaMismatch(
            f"the schema queuety holds something that is not ours: {said}", "drop or rename it, then migrate"
        )
    return QueuetyError(f"the migration failed and was rolled back: {said}")
