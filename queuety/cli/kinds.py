"""Kinds of options and arguments: how each is read and refused, the same in every command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from queuety import units
from queuety.cli.output import talk
from queuety.errors import UsageError
from queuety.limits import LARGEST, LONGEST_WINDOW_S, SHORTEST_WINDOW_S
from queuety.model import State
from queuety.names import check_name, check_queue, check_unique_key, queue_list, weighted_queues
from queuety.settings import SETTINGS
from queuety.unique import SHORTEST_S, check_on_duplicate, check_until
from queuety.units import CENTURY_S

F = TypeVar("F", bound=Callable[..., Any])

MOST_WORKERS = 1000
MOST_LISTED = 10_000
MOST_PREVIEWED = 1000


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # cannot be subscripted in older versions


class Kind(_Type):
    """Text read by a function of (text, option's name) that raises UsageError."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return self._read(value, _named(param))


def _named(param: click.Parameter | None) -> str:
    if param is None:
        return ""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.name or "").upper()


def _state(value: str, what: str) -> State:
    try:
        return State(value.strip().lower())
    except ValueError:
        raise UsageError(
            f"{what}={units.shown(value)} is not a state", f"give one of {', '.join(State)}"
        ) from None


def _priority(value: str, what: str) -> Any:
    from queuety.handler import check_priority

    text = value.strip()
    try:
        return check_priority(int(text) if text in ("0", "1", "2", "3") else text)
    except UsageError as error:
        raise UsageError(f"{what}={units.shown(value)} is not a priority", error.hint) from None


def _rate(value: str, what: str) -> tuple[int, float]:
    count, slash, window = value.partition("/")
    if not slash:
        raise UsageError(f"{what}={units.shown(value)} is no rate", "give starts/duration: 100/1s, 5/1m")
    return units.whole(count, minimum=1, maximum=LARGEST, what=what), units.seconds(
        window, minimum=SHORTEST_WINDOW_S, maximum=LONGEST_WINDOW_S, what=f"the window of {what}"
    )


JOB_ID = Kind("id", lambda value, what: units.whole(value, minimum=1, what=what))
QUEUE = Kind("queue", lambda value, _: check_queue(value))
QUEUES = Kind("queues", lambda value, _: queue_list(value))
WEIGHTED = Kind("queues", lambda value, _: weighted_queues(value))
HANDLER = Kind("handler", lambda value, _: check_name("handler", value))
KEY = Kind("key", lambda value, _: check_name("schedule", value))
TOKEN = Kind("token", lambda value, _: check_name("token", value))
WEBHOOK = Kind("name", lambda value, _: check_name("webhook", value))
TAG = Kind("tag", lambda value, _: check_name("tag", value))
POOL_NAME = Kind("name", lambda value, _: check_name("pool", value))
SCHEDULER_NAME = Kind("name", lambda value, _: check_name("scheduler", value))
UNIQUE_KEY = Kind("key", lambda value, _: check_unique_key(value))
UNTIL = Kind("state", lambda value, _: check_until(value.strip().lower()))
ON_DUPLICATE = Kind("answer", lambda value, _: check_on_duplicate(value.strip().lower()))
GROUP = Kind("group", lambda value, _: check_name("concurrency_group", value))
RATE_KEY = Kind("key", lambda value, _: check_name("rate_key", value))
RATE = Kind("n/s", _rate)
UNITS = Kind("n", lambda value, what: units.whole(value, maximum=LARGEST, what=what))
PLACES = Kind("n", lambda value, what: units.whole(value, minimum=1, maximum=LARGEST, what=what))
STATE = Kind("state", _state)
PRIORITY = Kind("priority", _priority)
WAIT = Kind("duration", lambda value, what: units.seconds(value, minimum=0.01, maximum=86_400, what=what))
UNIQUE_FOR = Kind(
    "duration", lambda value, what: units.seconds(value, minimum=SHORTEST_S, maximum=CENTURY_S, what=what)
)
WINDOW = Kind(
    "duration", lambda value, what: units.seconds(value, minimum=1, maximum=366 * 86_400, what=what)
)
SECONDS = Kind("duration", lambda value, what: units.seconds(value, what=what))
INSTANT = Kind("time", lambda value, what: units.instant(value, what=what))
WORKERS = Kind("n", lambda value, what: units.whole(value, minimum=1, maximum=MOST_WORKERS, what=what))
ATTEMPTS = Kind("n", lambda value, what: units.whole(value, minimum=1, maximum=1000, what=what))
PREVIEWED = Kind("n", lambda value, what: units.whole(value, minimum=1, maximum=MOST_PREVIEWED, what=what))
LIMIT = Kind("n", lambda value, what: units.whole(value, minimum=1, maximum=MOST_LISTED, what=what))


_OF_JOBS = (
    click.option("--queue", type=QUEUE, help="Instead of the handler's own."),
    click.option("--priority", type=PRIORITY, help="urgent, high, normal or low."),
    click.option("--max-attempts", type=ATTEMPTS, help="How often it is started at most."),
    click.option("--unique", is_flag=True, help="Only one job of this handler and payload."),
    click.option("--unique-key", type=UNIQUE_KEY, help="Only one job with this key."),
    click.option("--unique-until", type=UNTIL, help="start or end of that job.  [default: end]"),
    click.option("--unique-for", type=UNIQUE_FOR, help="That long from the enqueue, instead: 1h."),
    click.option(
        "--on-duplicate", type=ON_DUPLICATE, help="return, replace, error or skip.  [default: return]"
    ),
    click.option("--concurrency-group", type=GROUP, help="Jobs of which so many run at a time."),
    click.option("--concurrency-limit", type=PLACES, help="How many.  [default group: the handler's name]"),
    click.option("--cost-units", type=UNITS, help="What it takes of the budgets of its queue and group."),
    click.option("--rate-limit", type=RATE, metavar="N/S", help="Starts in any window: 100/1s, 5/1m."),
    click.option("--rate-key", type=RATE_KEY, help="Counted by this name.  [default: the handler's]"),
    click.option("--tag", "tags", type=TAG, multiple=True, help="A name to find the job by; repeatable."),
)


def of_jobs(command: F) -> F:
    """The options of one job, apart from when it is due."""
    for option in reversed(_OF_JOBS):
        command = option(command)
    return command


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that were given."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }


def as_json(command: F) -> F:
    """The option --json."""
    return click.option("--json", "json_", is_flag=True, help="Write JSON to standard output.")(command)


def limited(default: int = 100) -> Callable[[F], F]:
    """The option --limit of a list."""
    return click.option(
        "--limit", type=LIMIT, default=str(default), show_default=True, help="Most rows to show."
    )


def bulk(command: F) -> F:
    """The options of a destructive bulk command."""
    command = click.option("--yes", is_flag=True, help="Do not ask; needed off a terminal.")(command)
    return click.option("--dry-run", is_flag=True, help="Only say what would be done.")(command)


def setting_options(*keys: str) -> Callable[[F], F]:
    """An option for each of these settings; the values reach the command as text, by key."""

    def add(command: F) -> F:
        for setting in reversed([one for one in SETTINGS if one.key in keys]):
            default = f"  [default: {setting.show(setting.default)}]" if setting.default is not None else ""
            command = click.option(
                setting.option,
                setting.key,
                metavar={"seconds": "DURATION", "whole": "N"}.get(setting.kind, setting.kind.upper()),
                help=setting.help + default,
            )(command)
        return command

    return add


def must_ask(*, yes: bool, dry_run: bool) -> bool:
    """Whether a destructive bulk command has to ask first; refuses where nobody could answer."""
    if yes or dry_run:
        return False
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: --yes is needed", "look first with --dry-run")
    return True


def agreed(question: str) -> bool:
    """A person's answer; says so if it is no."""
    if click.confirm(question, err=True):
        return True
    talk("nothing was done")
    return False
