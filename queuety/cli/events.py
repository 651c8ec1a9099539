"""`events`: a job's journal, as far as it is written and as it goes on."""

from __future__ import annotations

import sys
import time
from datetime import UTC
from typing import TYPE_CHECKING

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, say
from queuety.plain import event_fields

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.model import Event

_LOOK_S = 0.5


@click.command()
@click.argument("job_id", metavar="ID", type=kinds.JOB_ID)
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@kinds.limited(1000)
@kinds.as_json
def events(job_id: int, follow: bool, limit: int, json_: bool) -> None:
    """Show what happened to a job, oldest first.

    --json writes a list; with --follow one object a line.

    \b
    queuety events 4711 --follow
    """
    with current().caller() as app:
        if follow:
            _follow(app, job_id, json_)
            return
        found = _history(app, job_id, limit)
    if json_:
        print_json([event_fields(event) for event in found])
        return
    for event in found:
        say(_line(event))


def _follow(app: Queuety, job_id: int, json_: bool) -> None:
    """Print each event once. Those that the job's own row tells have no id: what they say identifies them."""
    told: set[tuple[object, ...]] = set()
    while True:
        ended = app.find(job_id).state.final  # before the journal: what follows is then all there is
        for event in _history(app, job_id, 100_000):
            key = (event.id,) if event.id else (event.type, event.at)
            if key not in told:
                told.add(key)
                print_json(event_fields(event), indent=None) if json_ else say(_line(event))
        sys.stdout.flush()
        if ended:
            return
        time.sleep(_LOOK_S)


def _history(app: Queuety, job_id: int, limit: int) -> list[Event]:
    from queuety.store import events as store

    with app.connection() as conn:
        return store.history(conn, job_id, limit)


def _line(event: Event) -> str:
    from json import dumps

    clock = event.at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    attempt = f"  attempt {event.attempt}" if event.attempt else ""
    data = dict(event.data or {})
    if isinstance(error := data.get("error"), dict):
        data["error"] = {key: error[key] for key in ("type", "message") if key in error}
    return f"{clock}  {event.type}{attempt}{f'  {dumps(data, ensure_ascii=False)}' if data else ''}"
