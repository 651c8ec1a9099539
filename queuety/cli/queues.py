"""Queues: list, pause, resume."""

from __future__ import annotations

from datetime import datetime

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.limits import print_meters
from queuety.cli.look import print_queues, with_keys
from queuety.cli.output import print_json, say
from queuety.plain import moment


@click.command()
@kinds.limited(1000)
@kinds.as_json
def queues(limit: int, json_: bool) -> None:
    """List the queues that hold jobs or are paused, and the keys whose limits hold jobs back.

    \b
    queuety queues
    queuety queues --json | jq '.[].keys[]'
    """
    from queuety.store import queues as store

    with current().caller() as app:
        with app.connection() as conn:
            rows = store.listing(conn)[:limit]
        meters = app.meters()
    if json_:
        print_json(with_keys(rows, meters))
    else:
        print_queues(rows)
        if meters:
            say("")
            print_meters(meters[:limit])


@click.command()
@click.argument("queue", type=kinds.QUEUE)
@click.option("--reason", default="", help="Shown to whoever looks.")
@click.option("--until", type=kinds.INSTANT, help="Goes on by itself then: 2030-01-31T09:00:00+09:00.")
@kinds.as_json
def pause(queue: str, reason: str, until: datetime | None, json_: bool) -> None:
    """Pause a queue: from the moment this returns no job of it is started. What runs goes on.

    \b
    queuety pause mail --reason="provider is down" --until=2030-01-31T09:00:00Z
    """
    with current().caller() as app:
        app.pause(queue, reason=reason, until=until)
    if json_:
        print_json({"queue": queue, "paused": True, "until": until, "reason": reason or None})
    else:
        say(f"queue {queue} is paused{f' until {moment(until)}' if until else ''}")


@click.command()
@click.argument("queue", type=kinds.QUEUE)
@kinds.as_json
def resume(queue: str, json_: bool) -> None:
    """Let a paused queue go on.

    \b
    queuety resume mail
    """
    with current().caller() as app:
        was_paused = app.resume(queue)
    if json_:
        print_json({"queue": queue, "paused": False, "was_paused": was_paused})
    else:
        say(f"queue {queue} goes on" if was_paused else f"queue {queue} was not paused")
