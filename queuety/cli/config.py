"""`config show` and `completion`."""

from __future__ import annotations

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say
from queuety.errors import UsageError
from queuety.settings import SETTINGS
from queuety.units import shown

_SHELLS = ("bash", "zsh", "fish")


@click.group()
def config() -> None:
    """Look at the settings.

    \b
    queuety config show --origin
    """


@config.command()
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@kinds.as_json
def show(origin: bool, json_: bool) -> None:
    """Show every setting as option, environment and file have it, without secrets.

    \b
    queuety config show --origin
    """
    settings = current().settings()
    rows = [(one.name, settings.show(one.key), settings.origin(one.key)) for one in SETTINGS]
    if json_:
        if origin:
            print_json({name: {"value": value, "origin": source} for name, value, source in rows})
        else:
            print_json({name: value for name, value, _ in rows})
        return
    headers = ["setting", "value", "origin"]
    width = 3 if origin else 2
    print_table(headers[:width], [row[:width] for row in rows])


@click.command()
@click.argument("shell")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the completion script for bash, zsh or fish.

    \b
    eval "$(queuety completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell) if shell in _SHELLS else None
    if found is None:
        raise UsageError(f"there is no completion for {shown(shell)}", f"give one of {', '.join(_SHELLS)}")
    say_script = found(ctx.find_root().command, {}, "queuety", "_QUEUETY_COMPLETE").source
    for part in say_script().splitlines():
        say(part)
