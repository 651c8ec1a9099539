"""`web`: the HTTP API in a process of its own, and the tokens that it asks for."""

from __future__ import annotations

from typing import Any

import click

from queuety import web as door
from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say, talk
from queuety.errors import UsageError

_NOT_FOUND = 5

NAME = click.argument("name", type=kinds.TOKEN)


@click.group(invoke_without_command=True)
@kinds.setting_options("web_host", "web_port", "web_root_path")
@click.option(
    "--auth", "web_auth", is_flag=True, default=None, help="Ask for tokens on loopback, too: behind a proxy."
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which it is reached; needed where no tokens are asked for, or a proxy changes the Host "
    "header. Repeatable.",
)
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    help="Let everybody who can reach it do everything; for where something else asks who comes.",
)
@click.pass_context
def web(ctx: click.Context, /, allow_hosts: tuple[str, ...], insecure_no_auth: bool, **options: Any) -> None:
    """Serve jobs over HTTP: start, poll, follow by server-sent events, cancel; queues, schedules, workers, metrics.

    Loopback is open; on any other address tokens are asked for, and it does not start without one. Needs the
    extra [web].

    \b
    queuety --app shop:app web
    queuety web token add shop-frontend --role=operator
    queuety --app shop:app web --host=0.0.0.0
    """
    if ctx.invoked_subcommand is not None:
        return
    door.require()
    if options["web_auth"] and insecure_no_auth:
        raise UsageError("--auth and --insecure-no-auth exclude each other", "give one of them")
    if allow_hosts:
        options["web_allow_hosts"] = ",".join(allow_hosts)
    if options["web_auth"]:
        options["web_auth"] = "on"
    from queuety.web.server import run

    with current().caller(handlers=True, **options) as app:
        run(app, insecure=insecure_no_auth)


@web.group()
def token() -> None:
    """Tokens of the HTTP API. A token is shown once, when it is made; only its digest is kept."""


@token.command()
@NAME
@click.option(
    "--role",
    metavar="viewer|operator|admin",
    default="viewer",
    show_default=True,
    help="viewer: look. operator: also start, cancel and retry jobs, run schedules. "
    "admin: also pause and resume queues and schedules.",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Write an entry for the setting web_tokens; keep nothing in the database.",
)
@kinds.as_json
def add(name: str, role: str, only_print: bool, json_: bool) -> None:
    """Make a token and show it, this once.

    \b
    queuety web token add grafana --role=viewer
    """
    from queuety.store import tokens as stored
    from queuety.web import tokens

    secret, made = tokens.make(name, role)
    if not only_print:
        with current().caller() as app, app.connection() as conn:
            stored.add(conn, made.name, str(made.role), made.digest)
    shown = {"name": made.name, "role": str(made.role), "token": secret}
    if json_:
        print_json({**shown, "entry": made.entry()} if only_print else shown)
        return
    talk(f"the token of {made.name} ({made.role}); it is not shown again")
    say(secret)
    if only_print:
        talk("its entry for web_tokens")
        say(made.entry())


@token.command("list")
@kinds.limited()
@kinds.as_json
def listing(limit: int, json_: bool) -> None:
    """List the tokens in the database, and those of the setting.

    \b
    queuety web token list
    """
    from queuety.store import tokens as stored
    from queuety.web import tokens

    with current().caller() as app:
        with app.connection() as conn:
            rows = stored.listing(conn)[:limit]
        fixed = tokens.parse(app.settings.web_tokens)
    found: list[dict[str, Any]] = [
        *({"name": one.name, "role": str(one.role), "from": "setting", "created_at": None} for one in fixed),
        *(
            {"name": row.name, "role": row.role, "from": "database", "created_at": row.created_at}
            for row in rows
        ),
    ]
    if json_:
        print_json(found)
    else:
        print_table(["name", "role", "from", "made"], [tuple(one.values()) for one in found])


@token.command()
@NAME
@kinds.as_json
def remove(name: str, json_: bool) -> int:
    """Forget a token: it is good for nothing within seconds.

    \b
    queuety web token remove grafana
    """
    from queuety.store import tokens as stored

    with current().caller() as app, app.connection() as conn:
        removed = stored.remove(conn, name)
    if not removed:
        talk(f"queuety: there is no token {name!r} in the database — see `queuety web token list`")
    if json_:
        print_json({"name": name, "removed": removed})
    elif removed:
        say(f"token {name} is removed")
    return 0 if removed else _NOT_FOUND
