"""What a job must have room for: how limits are given, checked and put together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queuety.errors import UsageError
from queuety.model import Limits
from queuety.names import check_name
from queuety.units import seconds

LIMITS = ("concurrency_group", "concurrency_limit", "cost_units", "rate_limit", "rate_key")
NO_LIMITS = Limits()
LARGEST = 1_000_000
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 0.1, 86_400.0


def limits_of(given: Mapping[str, Any]) -> Limits:
    """What limits a job, from the settings and options named in LIMITS; None means not given."""
    rate = given["rate_limit"]
    count, window = (None, None) if rate is None else check_rate(rate)
    return Limits(
        group=_if_given(given["concurrency_group"], lambda value: check_name("concurrency_group", value)),
        concurrency=_if_given(
            given["concurrency_limit"], lambda value: check_whole("concurrency_limit", value, 1, LARGEST)
        ),
        cost=_if_given(given["cost_units"], lambda value: check_whole("cost_units", value, 0, LARGEST)),
        rate_key=_if_given(given["rate_key"], lambda value: check_name("rate_key", value)),
        rate_count=count,
        rate_s=window,
    )


def merged(handler: str, given: Limits, own: Limits) -> Limits:
    """A job's limits: what was given wins over the handler's own; a group or rate without a name has its name."""
    group = given.group or own.group
    concurrency = given.concurrency or own.concurrency
    count, window = (given.rate_count, given.rate_s) if given.rate_count else (own.rate_count, own.rate_s)
    return Limits(
        group=group or (handler if concurrency else None),
        concurrency=concurrency,
        cost=own.cost if given.cost is None else given.cost,
        rate_key=given.rate_key or own.rate_key or (handler if count else None),
        rate_count=count,
        rate_s=window,
    )


def of_handlers(limits: Mapping[str, Limits]) -> str | None:
    """The limits of handlers as a JSON object by name; None if none of them has any."""
    found = {name: text for name, own in limits.items() if (text := merged(name, NO_LIMITS, own).to_json())}
    return (
        "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in found.items()) + "}"
        if found
        else None
    )


def _if_given(value: Any, check: Callable[[Any], Any]) -> Any:
    return None if value is None else check(value)


def check_rate(value: object) -> tuple[int, float]:
    """A rate: (starts, seconds)."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise UsageError(
            f"rate_limit={value!r} is no rate", "give (starts, seconds), such as (100, 1) or (5, '1m')"
        )
    count = check_whole("the starts of rate_limit", value[0], 1, LARGEST)
    window = seconds(
        value[1], minimum=SHORTEST_WINDOW_S, maximum=LONGEST_WINDOW_S, what="the window of rate_limit"
    )
    return count, window


def new_limits(concurrency: object, budget: object, rate: object) -> dict[str, Any]:
    """Limits about to be set for a key, by the columns they go to; what is None is left out. 0 stops the key."""
    found: dict[str, Any] = {}
    if concurrency is not None:
        found["concurrency"] = check_whole("concurrency", concurrency, 0, LARGEST)
    if budget is not None:
        found["budget"] = check_whole("budget", budget, 0, LARGEST)
    if rate is not None:
        found["rate_count"], found["rate_s"] = check_rate(rate)
    return found


def check_whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name}={value!r} is out of range", f"give a whole number from {least} to {most}")
    return value
