"""`events`: a job's journal, as far as it is written and as it goes on."""

from __future__ import annotations

import sys
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, say
from queuety.errors import UsageError
from queuety.model import StreamEvent
from queuety.plain import event_fields
from queuety.units import shown
from queuety.watching.place import Place

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.model import Event


@click.command()
@click.argument("job_id", metavar="ID", type=kinds.JOB_ID)
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--types",
    type=click.Choice(["journal", "public"]),
    default="journal",
    show_default=True,
    help="All that happened, or the events that viewers of the job's stream get.",
)
@click.option("--after", metavar="EVENT_ID", help="With --types=public: only what came after that event.")
@kinds.limited(1000)
@kinds.as_json
def events(job_id: int, follow: bool, types: str, after: str | None, limit: int, json_: bool) -> None:
    """Show what happened to a job, oldest first.

    --limit does not go with --follow. --json writes a list; with --follow one object a line.

    \b
    queuety events 4711 --follow
    queuety events 4711 --types=public --after=57.0 --json
    """
    public = types == "public"
    if after is not None and not public:
        raise UsageError(f"--after={shown(after)} is a place in the stream", "add --types=public")
    Place.parse(after)
    given = click.get_current_context().get_parameter_source("limit") is ParameterSource.COMMANDLINE
    if follow and given:
        raise UsageError(
            f"--limit={limit} and --follow: what is followed goes on to its end", "leave one of them out"
        )
    with current().caller() as app:
        if follow:
            _follow_stream(app, job_id, after, json_) if public else _follow(app, job_id, json_)
            return
        found = app.history(job_id, after=after, limit=limit) if public else _history(app, job_id, limit)
    if json_:
        print_json([_fields(event) for event in found])
        return
    for event in found:
        say(_line(event))


def _follow_stream(app: Queuety, job_id: int, after: str | None, json_: bool) -> None:
    with app.stream(job_id, after=after) as stream:
        for event in stream:
            _show(event, json_)
            sys.stdout.flush()


def _follow(app: Queuety, job_id: int, json_: bool) -> None:
    """Print each event of the journal once, whenever the stream tells that there is something new."""
    printed = _Printed(app, job_id, json_)
    printed.go_on()
    with app.stream(job_id) as stream:
        for event in stream:
            line, _, part = event.event_id.partition(".")
            if int(line) > printed.last or part != "0":
                printed.go_on()


class _Printed:
    """What has been printed. Events that the job's own row tells have no id: what they say identifies them."""

    def __init__(self, app: Queuety, job_id: int, json_: bool) -> None:
        self._app = app
        self._job_id = job_id
        self._json = json_
        self._told: set[tuple[object, ...]] = set()
        self._buried = False
        self.last = 0

    def go_on(self) -> None:
        for event in _history(self._app, self._job_id, 100_000, self.last):
            if event.id:
                self.last = max(self.last, event.id)
                self._buried = event.type == "buried"
            elif (event.type, event.at) in self._told or (self._buried and event.type == "buried"):
                continue
            else:
                self._told.add((event.type, event.at))
            _show(event, self._json)
        sys.stdout.flush()


def _show(event: Event | StreamEvent, json_: bool) -> None:
    print_json(_fields(event), indent=None) if json_ else say(_line(event))


def _fields(event: Event | StreamEvent) -> dict[str, Any]:
    return event.as_json() if isinstance(event, StreamEvent) else event_fields(event)


def _history(app: Queuety, job_id: int, limit: int, after: int = 0) -> list[Event]:
    from queuety.store import events as store

    with app.connection() as conn:
        return store.history(conn, job_id, limit, after)


def _line(event: Event | StreamEvent) -> str:
    from json import dumps

    clock = event.at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(event, StreamEvent):
        data, name = dict(event.payload), f"{event.event_id}  {event.type}"
    else:
        data = dict(event.data or {})
        name = f"{event.type}  attempt {event.attempt}" if event.attempt else event.type
    if isinstance(error := data.get("error"), dict):
        data["error"] = {key: error[key] for key in ("type", "message") if key in error}
    return f"{clock}  {name}{f'  {dumps(data, ensure_ascii=False)}' if data else ''}"
