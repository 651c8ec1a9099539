"""The `queuety` command: global options, the commands by name, and how an error becomes one line and a code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from queuety import __version__
from queuety.cli import logs
from queuety.cli.invocation import Invocation
from queuety.cli.output import talk
from queuety.errors import QueuetyError
from queuety.redaction import redact

log = logging.getLogger("queuety.cli")

# Command → module of queuety.cli and attribute in it; imported when it is called.
COMMANDS = {
    "work": ("pool", "work"),
    "flush": ("pool", "flush"),
    "scheduler": ("scheduler", "scheduler"),
    "recover": ("act", "recover"),
    "enqueue": ("enqueue", "enqueue"),
    "status": ("look", "status"),
    "jobs": ("look", "jobs"),
    "job": ("look", "job"),
    "events": ("events", "events"),
    "workers": ("look", "workers"),
    "metrics": ("metrics", "metrics"),
    "why": ("health", "why"),
    "doctor": ("health", "doctor"),
    "queues": ("queues", "queues"),
    "pause": ("queues", "pause"),
    "resume": ("queues", "resume"),
    "limit": ("limits", "limit"),
    "schedule": ("schedule", "schedule"),
    "web": ("web", "web"),
    "webhook": ("webhook", "webhook"),
    "cancel": ("act", "cancel"),
    "retry": ("act", "retry"),
    "bury": ("act", "bury"),
    "delete": ("act", "delete"),
    "purge": ("act", "purge"),
    "demo": ("demo", "demo"),
    "db": ("database", "db"),
    "config": ("config", "config"),
    "completion": ("config", "completion"),
}


class Commands(click.Group):
    """Imports a command only when it is called, so that one that needs little stays little."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] in ("work", "flush", "scheduler"):
            _let_stop(ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(f"queuety.cli.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found


def _let_stop(ctx: click.Context) -> None:
    """Let SIGTERM end a pool that has not begun with 0, as it ends one that runs. Later handlers take its place."""
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ctx.call_on_close(lambda: signal.signal(signal.SIGTERM, before) and None)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application.  [env QUEUETY_APP]")
@click.option(
    "--database-url",
    metavar="URL",
    help="Where the queue lives; without it the embedded PostgreSQL.  [env QUEUETY_DATABASE_URL, DATABASE_URL]",
)
@click.option("--log-format", metavar="console|json", help="Log lines for people or for machines.")
@click.option("--log-level", metavar="debug|info|warning|error", help="What is logged.  [default: info]")
@click.version_option(__version__, prog_name="queuety", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """A job queue whose queue is a PostgreSQL table.

    \b
    queuety --app shop:app work --queue=critical,default --workers=4
    queuety enqueue send_mail --payload '{"to": "kim@example.org"}'
    queuety jobs --state=buried
    """
    ctx.obj = Invocation(options)
    logs.configure_early(options["log_format"])
    url = options.get("database_url")
    if url and redact(url) != url:
        from queuety.process.titles import title

        title(f"{ctx.invoked_subcommand}")  # `ps` would show the password
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code. Whatever goes wrong is one line on standard error."""
    _open_standard_files()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # closed from the start, or somebody's own
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if "_QUEUETY_COMPLETE" in os.environ:
        cli.main(prog_name="queuety")
    with _standard_output():
        return _coded(sys.argv[1:] if arguments is None else arguments)


def _coded(arguments: list[str]) -> int:
    try:
        with cli.make_context("queuety", list(arguments)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.ClickException as error:
        return _refused(error)
    except QueuetyError as error:
        log.debug("%s", type(error).__name__, exc_info=True)
        talk(f"queuety: {error.message}{f' — {error.hint}' if error.hint else ''}", level=logging.ERROR)
        return error.exit_code
    except BrokenPipeError:  # who reads us has enough
        return 0
    except OSError as error:
        log.debug("output", exc_info=True)
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            return _unexpected(error)
        talk(
            f"queuety: the output cannot be written: {error.strerror} — what the command did is done",
            level=logging.ERROR,
        )
        return 1
    except Exception as error:
        log.debug("unexpected", exc_info=True)
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    said = " ".join(str(error).split())[:500]
    talk(f"queuety: unexpected {type(error).__name__}: {said} — see --log-level debug", level=logging.ERROR)
    return 1


def _refused(error: click.ClickException) -> int:
    """A mistake that click found."""
    said = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "queuety"
    hint = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption) and any(error.option_name in one.opts for one in cli.params):
        hint = f"it stands before the command: queuety {error.option_name}=… {path.partition(' ')[2]}"
    talk(f"queuety: {said} — {hint}", level=logging.ERROR)
    return 2


def _open_standard_files() -> None:
    """Put the null device where a standard file is closed: the next file opened would take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


@contextlib.contextmanager
def _standard_output() -> Iterator[None]:
    """Let nothing be left in the buffers that the interpreter would fail to write at its end."""
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
