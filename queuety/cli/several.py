"""One verb for several jobs, schedules or webhooks: a line and a result for each, and one exit code for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from queuety.cli.invocation import current
from queuety.cli.output import print_json, say, talk
from queuety.errors import (
    JobNotFound,
    QueuetyError,
    ScheduleNotFound,
    UsageError,
    WebhookNotFound,
    WrongState,
)
from queuety.process.output import protect

T = TypeVar("T", int, str)

_PARTLY_DONE = 7


def each(noun: str, named: str, items: Sequence[T], verb: Callable[[Any, T], str], json_: bool) -> int:
    """Apply a verb to every item; one line each. Returns 0, 5 or 6 if all failed so, 7 if some did.

    noun: job, schedule or webhook.  named: what an item is called, also in JSON: id, key or name.
    """
    if not items:
        raise UsageError(f"no {noun} is named", f"give one {named} or several")
    protect()  # a reader that has gone must not keep the rest from being treated
    results: list[dict[str, Any]] = []
    codes: list[int] = []
    with current().caller() as app:
        for item in dict.fromkeys(items):
            try:
                done = verb(app, item)
            except (JobNotFound, ScheduleNotFound, WebhookNotFound, WrongState) as error:
                codes.append(error.exit_code)
                results.append({named: item, "done": None, "error": error.message})
                talk(_refusal(error))
            else:
                codes.append(0)
                results.append({named: item, "done": done, "error": None})
                if not json_:
                    say(f"{noun} {item} {done}")
    if json_:
        print_json(results)
    return codes[0] if len(set(codes)) == 1 else _mixed(codes)


def _mixed(codes: list[int]) -> int:
    """Some worked and some did not; or none did, for different reasons: then the state is the better reason."""
    return _PARTLY_DONE if 0 in codes else max(codes)


def _refusal(error: QueuetyError) -> str:
    return f"queuety: {error.message}{f' — {error.hint}' if error.hint else ''}"
