"""`db`: the database's schema, and the embedded PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import click

from queuety import loading
from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_pairs, say
from queuety.errors import DatabaseUnreachable, QueuetyError, RightsMissing, SchemaMismatch, UsageError
from queuety.redaction import redact


@click.group()
def db() -> None:
    """Migrate and look at the database; use the embedded PostgreSQL.

    \b
    queuety db migrate
    queuety db status
    """


@db.command()
@kinds.as_json
def migrate(json_: bool) -> None:
    """Bring the database's schema to this version. Workers and callers never do it by themselves.

    All of it is one transaction. Several may be started at once: one does the work.

    \b
    queuety --database-url postgresql://… db migrate
    """
    with current().caller() as app:
        from queuety.store import migrations, schema

        applied = migrations.migrate(app.url, say=lambda text: None if json_ else say(text))
    if json_:
        print_json({"applied": applied, "revision": schema.EXPECTED})
    elif not applied:
        say(f"the schema is up to date: revision {schema.EXPECTED}")


@db.command()
@kinds.as_json
def status(json_: bool) -> int:
    """Show where the queue lives, which schema it has, and whether an embedded PostgreSQL runs.

    Starts nothing. Exits with 3 if the database cannot be reached or lacks rights, with 4 if the schema is not
    of this version.

    \b
    queuety db status --json
    """
    url = _configured()
    facts: dict[str, Any] = {"database": redact(url) if url else "embedded"}
    if url is None:
        from queuety import embedded

        found = embedded.status()
        facts |= {
            "running": found.running,
            "url": found.url,
            "directory": str(found.directory),
            "version": found.version,
            "pid": found.pid,
            "in_use": found.users,
        }
        url = found.url if found.running else None
    problem = None
    if url is not None:
        more, problem = _look(url)
        facts |= more
    if json_:
        print_json({**facts, "problem": problem.message if problem else None})
        return problem.exit_code if problem else 0
    print_pairs((name.replace("_", " "), _word(value)) for name, value in facts.items())
    if problem:
        raise problem
    return 0


def _look(url: str) -> tuple[dict[str, Any], QueuetyError | None]:
    from queuety.store import connect, schema

    try:
        with connect.connect(url, name="queuety status") as conn:
            facts = {
                "server": conn.info.parameter_status("server_version"),
                "schema": schema.current(conn),
                "expected": schema.EXPECTED,
            }
            try:
                schema.check_schema(conn)
                schema.check_rights(conn)
            except (SchemaMismatch, RightsMissing) as error:
                return facts, error
            return facts, None
    except (DatabaseUnreachable, RightsMissing) as error:
        return {"schema": None}, error


@db.command()
def sql() -> None:
    """Write the schema as SQL, for a database administrator to read or to run.

    \b
    queuety db sql > queuety.sql
    """
    from queuety.store import migrations

    sys.stdout.write(migrations.sql())


@db.command()
@click.option("--force", is_flag=True, help="Also if others use it: their connections break.")
@kinds.as_json
def stop(force: bool, json_: bool) -> None:
    """Stop the embedded PostgreSQL, if somebody who was killed has left it running.

    \b
    queuety db stop
    """
    from queuety import embedded

    current().settings()
    stopped = embedded.stop(force=force)
    if json_:
        print_json({"stopped": stopped})
    else:
        say("stopped" if stopped else "the embedded PostgreSQL does not run")


@db.command()
def url() -> None:
    """Print the database's URL, without its password; the embedded one's has none.

    \b
    psql "$(queuety db url)"
    """
    from queuety import embedded

    configured = _configured()
    say(redact(configured) if configured else embedded.status().url)


@db.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...]) -> int:
    """Open psql on the database; further arguments are psql's.

    \b
    queuety db psql -- -c 'TABLE queuety.queues'
    """
    configured = _configured()
    if configured is not None:
        command, environ = _psql_on(configured)
        return _run([*command, *arguments], environ)
    from queuety import embedded

    with embedded.start():
        return _run([*embedded.psql_command(), *arguments], {})


def _psql_on(url: str) -> tuple[list[str], dict[str, str]]:
    """The command, and the password in the environment, where other users cannot see it."""
    found = shutil.which("psql")
    if found is None:
        raise UsageError("no psql found", "install PostgreSQL's client programs")
    from queuety.store.connect import parameters

    given = parameters(url)
    environ = {"PGPASSWORD": str(given.pop("password"))} if "password" in given else {}
    quoted = {name: str(value).replace("\\", "\\\\").replace("'", "\\'") for name, value in given.items()}
    return [found, "--dbname=" + " ".join(f"{name}='{value}'" for name, value in quoted.items())], environ


def _run(command: list[str], environ: dict[str, str]) -> int:
    sys.stdout.flush()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql
    try:
        return subprocess.run(
            command,
            env={**os.environ, **environ},
            check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _configured() -> str | None:
    """The URL from option, environment, file or the application; None: the embedded server."""
    settings = current().settings()
    if settings.database_url is None and settings.app:
        settings = loading.adopt(settings, loading.own_settings(loading.load(settings.app)))
    return settings.database_url


def _word(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value
