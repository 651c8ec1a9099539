"""Limits of keys: show and set them."""

from __future__ import annotations

from typing import Any

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_pairs, print_table, say, span
from queuety.errors import UsageError


@click.command()
@click.argument("key")
@click.option("--concurrency", type=kinds.UNITS, help="Runs of a group at a time; 0 stops it.")
@click.option(
    "--budget", type=kinds.UNITS, help="Cost units of a group or queue that may run at a time; 0 stops it."
)
@click.option(
    "--rate", type=kinds.RATE, metavar="N/S", help="Starts of a rate key in any window: 100/1s, 5/1m."
)
@click.option("--reset", is_flag=True, help="Forget what was set: jobs and settings decide again.")
@kinds.as_json
def limit(key: str, concurrency: int | None, budget: int | None, rate: Any, reset: bool, json_: bool) -> None:
    """Show or set the limits of a key: group:NAME, queue:NAME or rate:NAME.

    What is set here holds for all hosts at once, while workers run, and wins over what jobs and settings say. What
    runs goes on. `queuety queues` lists all keys.

    \b
    queuety limit group:tenant:42 --concurrency=3
    queuety limit queue:reports --budget=10
    queuety limit rate:send_mail --rate=100/1s
    queuety limit group:tenant:42 --reset
    """
    from queuety.store.meters import as_json

    given = {"concurrency": concurrency, "budget": budget, "rate_limit": rate}
    if reset and any(value is not None for value in given.values()):
        raise UsageError("--reset and a new limit exclude each other", "give one of them")
    with current().caller() as app:
        if reset:
            was_set = app.unlimit(key)
            if json_:
                print_json({"key": key, "reset": was_set})
            else:
                say(f"what was set for {key} is forgotten" if was_set else f"nothing was set for {key}")
            return
        meter = app.limit(key, **given)
    if json_:
        print_json(as_json(meter))
    else:
        print_pairs(
            [
                ("key", meter.key),
                ("limit", f"{meter.limit or 'none'}{' (set in the database)' if meter.stored else ''}"),
                ("running", _running(meter)),
                ("parked", meter.parked),
                ("oldest parked", span(meter.oldest_parked_s)),
                ("over the budget", meter.never or None),
                ("queues", ", ".join(meter.queues)),
            ]
        )


def print_meters(meters: list[Any]) -> None:
    """The table of limited keys."""
    print_table(
        ["key", "limit", "running", "parked", "oldest parked", "queues"],
        [
            (
                meter.key,
                f"{meter.limit or 'none'}{' *' if meter.stored else ''}",
                _running(meter),
                f"{meter.parked}{f' + {meter.never} over the budget' if meter.never else ''}",
                span(meter.oldest_parked_s),
                ", ".join(meter.queues),
            )
            for meter in meters
        ],
        right=["running", "parked", "oldest parked"],
    )
    if any(meter.stored for meter in meters):
        say("* set in the database")


def _running(meter: Any) -> str:
    if meter.kind == "rate":
        return f"{meter.running} ({meter.started} started)"
    return f"{meter.running}" if meter.budget is None else f"{meter.running} ({meter.cost} units)"
