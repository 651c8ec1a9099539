"""Write docs/settings.md and docs/commands.md from the code, so that they cannot drift.

python docs/generate.py           write them
python docs/generate.py --check   write nothing; exit with 1 if one of them differs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from queuety import errors
from queuety.cli.main import COMMANDS, cli
from queuety.process import supervisor
from queuety.settings import SETTINGS, Setting
from queuety.units import seconds_text, size_text

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py. Do not edit: run `make docs`. -->"

KINDS = {
    "text": "text",
    "url": "URL",
    "zone": "the name of an IANA time zone",
    "choice": "one of",
    "seconds": "duration",
    "size": "size",
    "whole": "whole number",
    "switch": "on or off",
    "address": "`host:port` or off",
    "budgets": 'a JSON object of names and whole numbers, such as `{"mail": 10}`; in the file also a table',
}

EXIT_CODES = {
    0: "Done. For `work`: it was stopped and had finished what ran.",
    1: "Unexpected error. `--log-level debug` shows where.",
    2: "Wrong option, setting, name or payload. Nothing was written.",
    3: "The database cannot be reached, or its role lacks a right.",
    4: "The schema is missing, older or newer than this version.",
    5: "There is no such job, schedule or webhook.",
    6: "The state of the job or schedule does not allow it. With `--wait`: the job was buried or cancelled.",
    7: "Partly done: of several ids or keys some were refused.",
    8: "A check failed: `flush --fail-on-buried`, `webhook test`.",
    70: "The application could not be imported, or workers keep dying at their start.",
    75: "Stopped before running jobs had finished; they were given back.",
    130: "A second Ctrl-C, or Ctrl-C in any other command.",
}

SIGNALS = {
    "TERM": "Drain: claim nothing more, finish what runs, exit with 0. A second one cuts what runs and gives it "
    "back: 75.",
    "INT": "As TERM. A second one exits with 130.",
    "QUIT": "Cut what runs at once and give it back: 75.",
    "HUP": "Replace the workers one by one; each successor is ready before its predecessor leaves.",
    "TTIN": "One worker more; of an adaptive pool: its least number of workers.",
    "TTOU": "One worker less, down to one; of an adaptive pool: its least number of workers.",
    "USR1": "Log what every worker is doing.",
}


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    """The page of all settings, from the registry."""
    rows = [
        (
            f"`{setting.name}`",
            f"`{setting.key}`",
            _option(setting),
            f"`{setting.show(setting.default)}`" if setting.default is not None else "",
            _range(setting),
            setting.help,
        )
        for setting in SETTINGS
    ]
    return _page(
        "Settings",
        "A command takes a setting from the first of these places that has it: its option, the environment, the "
        "file, the application's `Queuety(…)`, the default. In a program of your own, the arguments of "
        "`Queuety(…)` are the options and come first: `Queuety(max_attempts=5)`.",
        "The file is `queuety.toml` (keys at the top) or the table `[tool.queuety]` of `pyproject.toml`: the "
        "nearest one on the way from the current directory to the root. An unknown key or a value out of range is "
        "an error that names it; an unknown environment variable that begins with `QUEUETY_` is a warning. An "
        "empty environment variable counts as not set, but for `QUEUETY_TIMEZONE`, where it is an error.",
        "Durations are written `30`, `30s`, `500ms`, `5m`, `1h30m`, `7d`; a bare number counts seconds. Sizes are "
        "written `64kB`, `128MB`, `1GB`; 1 kB is 1024 bytes. `queuety config show --origin` prints every value "
        "that counts and where it comes from.",
        _table(["environment", "file key", "option", "default", "range", "meaning"], rows),
        "For the database's URL `DATABASE_URL` is read too, after `QUEUETY_DATABASE_URL`.",
        "## The embedded PostgreSQL",
        "These two are read from the environment only.",
        _table(
            ["environment", "default", "meaning"],
            [
                (
                    "`QUEUETY_DATA_DIR`",
                    "`/var/lib/queuety` for root, else `queuety` in the user's XDG data folder "
                    "(`~/.local/share`)",
                    "The folder of the embedded PostgreSQL: its data, socket, locks and log.",
                ),
                (
                    "`QUEUETY_PG_BIN`",
                    "the wheel of the extra `embedded`, else the newest of `/usr/lib/postgresql`",
                    "The folder that holds `postgres` and `initdb`.",
                ),
            ],
        ),
    )


def _option(setting: Setting) -> str:
    """The option, and the commands that take it."""
    if setting.option in _options_of(cli):
        return f"`{setting.option}`, before the command"
    names = [name for name, command in commands() if _takes(command, setting)]
    return f"`{setting.option}` of {', '.join(f'`{name}`' for name in names)}" if names else ""


def _takes(command: click.Command, setting: Setting) -> bool:
    """Whether an option of the command is this setting, and not just called alike."""
    return any(
        isinstance(param, click.Option) and param.name == setting.key and setting.help in (param.help or "")
        for param in command.params
    )


def _options_of(command: click.Command) -> set[str]:
    return {name for param in command.params if isinstance(param, click.Option) for name in param.opts}


def _range(setting: Setting) -> str:
    if setting.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind not in ("seconds", "size", "whole"):
        return KINDS[setting.kind]
    least, most = (_written(setting.kind, value) for value in (setting.minimum, setting.maximum))
    return f"{KINDS[setting.kind]}, `{least}` to `{most}`"


def _written(kind: str, value: float) -> str:
    if kind == "seconds":
        return seconds_text(value)
    return size_text(value) if kind == "size" else str(int(value))


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────


def commands_page() -> str:
    """The page of all commands, from the click tree."""
    _check_codes()
    parts = [
        "What people and programs type. Output for people is a table or one line; `--json` writes stable JSON to "
        "standard output. All talk goes to standard error. An error is one line that says what is wrong and what "
        "to do.",
        "Durations are written `30`, `5m`, `1h30m`; times `2030-01-31T09:00:00+09:00`. Settings that are options "
        "here are described in [settings.md](settings.md).",
        "## queuety",
        *_described("queuety", cli),
    ]
    for name, command in commands():
        parts += [f"## queuety {name}", *_described(f"queuety {name}", command)]
    parts += [
        "## Exit codes",
        _table(["code", "meaning"], [(str(code), text) for code, text in EXIT_CODES.items()]),
        "## Signals",
        "Of `work` and `flush`, sent to the supervisor: the process that was started. Sending them to all "
        "processes of its group does the same.",
        _table(["signal", "effect"], [(f"`{name}`", text) for name, text in SIGNALS.items()]),
    ]
    return _page("Commands", *parts)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members."""
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for inner, member in command.commands.items():
                yield f"{name} {inner}", member


def _described(path: str, command: click.Command) -> Iterator[str]:
    yield f"```text\n{_usage(path, command)}\n```"
    yield from _help(command.help or "")
    rows = [_option_row(param) for param in command.params if isinstance(param, click.Option)]
    if rows:
        yield _table(["option", "default", "meaning"], rows)


def _usage(path: str, command: click.Command) -> str:
    words = [path, "[OPTIONS]"] if command.params else [path]
    for param in command.params:
        if isinstance(param, click.Argument):
            name = param.metavar or (param.name or "").upper()
            words.append(name if param.required or param.metavar else f"[{name}]")
    if isinstance(command, click.Group):
        words.append("COMMAND …")
    return " ".join(words)


def _help(text: str) -> Iterator[str]:
    """Paragraphs; those that click must not wrap are examples."""
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in part.splitlines()]
        if lines[0] == "\b":
            yield "\n".join(["```console", *lines[1:], "```"])
        else:
            yield " ".join(lines)


def _option_row(option: click.Option) -> tuple[str, str, str]:
    text, default = option.help or "", ""
    if found := re.search(r"\s*\[default: (.*?)\]", text):
        text, default = text.replace(found[0], ""), found[1]
    elif option.show_default and option.default is not None:
        default = str(option.default)
    if found := re.search(r"\s*\[env (.*?)\]", text):
        text = text.replace(found[0], f" Environment: {found[1]}.")
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return f"`{', '.join(option.opts)}{value}`", f"`{default}`" if default else "", text.strip()


def _check_codes() -> None:
    """Fail if the code can end with a number that the table does not tell."""
    raised = {one.exit_code for one in vars(errors).values() if hasattr(one, "exit_code")}
    of_pools = {supervisor.CUT_CODE, supervisor.GIVE_UP_CODE, supervisor.INTERRUPT_CODE}
    missing = (raised | of_pools | set(supervisor.BOOT_CODES)) - EXIT_CODES.keys()
    assert not missing, f"exit codes without a meaning: {missing}"


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *parts]) + "\n"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def pages() -> dict[Path, str]:
    """What belongs into which file."""
    return {HERE / "settings.md": settings_page(), HERE / "commands.md": commands_page()}


def main(arguments: Sequence[str]) -> int:
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} is not what the code says: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
