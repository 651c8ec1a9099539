"""Commands that look: status, jobs, job, workers."""

from __future__ import annotations

from typing import Any

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.limits import print_meters
from queuety.cli.output import print_json, print_pairs, print_table, say, span
from queuety.plain import job_fields, plain


@click.command()
@click.option("--queue", "queues", type=kinds.QUEUES, help="Only these queues: a,b,c.")
@kinds.as_json
def status(queues: tuple[str, ...] | None, json_: bool) -> None:
    """How many jobs are in which state, and which queues they wait in.

    Due jobs can run now, later ones have a time ahead, parked ones wait for something else than time.

    \b
    queuety status --json
    """
    from queuety.store.meters import as_json

    with current().caller() as app:
        stats = app.stats()
        meters = app.meters()
        schedules = app.schedules.counts()
    if queues is not None:
        meters = [meter for meter in meters if set(meter.queues) & set(queues)]
    rows = [row for row in stats.queues if queues is None or row.name in queues]
    if json_:
        print_json(
            {
                "pending": stats.pending,
                "due": stats.due,
                "later": stats.later,
                "parked": stats.parked,
                "processing": stats.processing,
                "completed": stats.completed,
                "cancelled": stats.cancelled,
                "buried": stats.buried,
                "workers": stats.workers,
                "schedules": schedules,
                "queues": with_keys(rows, meters),
                "keys": [as_json(meter) for meter in meters],
            }
        )
        return
    more = "+" if stats.capped else ""
    print_pairs(
        [
            ("pending", f"{stats.pending} ({stats.due} due, {stats.later} later, {stats.parked} parked)"),
            ("processing", stats.processing),
            ("completed", f"{stats.completed}{more} in 24 h"),
            ("cancelled", f"{stats.cancelled}{more} in 24 h"),
            ("buried", stats.buried),
            ("workers", stats.workers),
            ("schedules", ", ".join(f"{number} {state}" for state, number in schedules.items())),
        ]
    )
    if rows:
        say("")
        print_queues(rows)
    if meters:
        say("")
        print_meters(meters)


def with_keys(rows: list[Any], meters: list[Any]) -> list[dict[str, Any]]:
    """Queues for programs, each with the limited keys of its jobs."""
    from queuety.store.meters import as_json

    return [
        {**plain(row), "keys": [as_json(meter) for meter in meters if row.name in meter.queues]}
        for row in rows
    ]


def print_queues(rows: list[Any]) -> None:
    """The table of queues."""
    print_table(
        ["queue", "due", "later", "parked", "processing", "waiting", "paused"],
        [
            (row.name, row.due, row.later, row.parked, row.processing, span(row.oldest_due_s), _paused(row))
            for row in rows
        ],
        right=["due", "later", "parked", "processing", "waiting"],
    )


def _paused(row: Any) -> str:
    if not row.paused:
        return ""
    until = f" until {row.paused_until:%Y-%m-%d %H:%M:%SZ}" if row.paused_until else ""
    return f"yes{until}{f': {row.reason}' if row.reason else ''}"


@click.command()
@click.option("--state", type=kinds.STATE, help="pending, processing, completed, buried or cancelled.")
@click.option("--queue", type=kinds.QUEUE, help="Only of this queue.")
@click.option("--handler", type=kinds.HANDLER, help="Only of this handler.")
@click.option("--tag", type=kinds.TAG, help="Only with this tag.")
@click.option("--after", type=kinds.JOB_ID, help="The page after this id: the last one of the page before.")
@kinds.limited(50)
@kinds.as_json
def jobs(json_: bool, limit: int, **filters: Any) -> None:
    """List jobs of all states, the newest first.

    \b
    queuety jobs --state=buried --queue=mail
    queuety jobs --json | jq '.[].id'
    """
    with current().caller() as app:
        found = app.jobs(limit=limit, **filters)
    if json_:
        print_json([job_fields(job) for job in found])
        return
    print_table(
        ["id", "queue", "handler", "state", "priority", "tries", "due", "payload"],
        [
            (
                job.id,
                job.queue,
                job.handler,
                f"{job.state} ({job.parked_on})" if job.parked_on else job.state,
                job.priority,
                f"{job.attempts}/{job.max_attempts}",
                job.available_at,
                _short(job.payload),
            )
            for job in found
        ],
        right=["id", "tries"],
    )


@click.command()
@click.argument("job_id", metavar="ID", type=kinds.JOB_ID)
@kinds.as_json
def job(job_id: int, json_: bool) -> None:
    """Show one job, whatever its state.

    \b
    queuety job 4711 --json
    """
    with current().caller() as app:
        found = app.find(job_id)
    if json_:
        print_json(job_fields(found))
        return
    error = dict(found.error or {})
    trace = error.pop("traceback", None)
    fields = {**job_fields(found), "error": f"{error['type']}: {error['message']}" if error else None}
    if found.state != "completed" and found.result is None:
        del fields["result"]
    print_pairs((name, _shown(getattr(found, name), value)) for name, value in fields.items())
    if trace:
        say("")
        for part in str(trace).splitlines():
            say(part)


@click.command()
@kinds.limited(1000)
@kinds.as_json
def workers(limit: int, json_: bool) -> None:
    """List the processes of all pools and what they run.

    \b
    queuety workers
    """
    from queuety.store import workers as store

    with current().caller() as app, app.connection() as conn:
        rows = store.listing(conn)[:limit]
    if json_:
        print_json(rows)
        return
    print_table(
        ["id", "kind", "name", "host", "pid", "queues", "started", "seen", "jobs"],
        [
            (
                row.id,
                row.kind,
                row.name,
                row.host,
                row.pid,
                row.queues,
                row.started_at,
                f"{span(row.silent_s)} ago",
                _some(row.jobs),
            )
            for row in rows
        ],
        right=["id", "pid", "seen"],
    )


def _some(ids: tuple[int, ...]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(map(str, ids[:5])) + more


def _short(value: object) -> str:
    from json import dumps

    text = dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _shown(raw: object, value: object) -> object:
    """A field for people: texts as they are, everything else as JSON or as the table shows it."""
    if raw is None or raw == ():
        return None
    return raw if isinstance(raw, (str, tuple)) or hasattr(raw, "utcoffset") else value
