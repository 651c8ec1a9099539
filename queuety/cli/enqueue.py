"""`enqueue`: write one job, or many from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from queuety.cli import bulk, kinds, payloads
from queuety.cli.invocation import current
from queuety.cli.output import print_json, say, talk
from queuety.errors import UsageError, WrongState
from queuety.plain import job_fields

if TYPE_CHECKING:
    from queuety.handle import JobHandle


@click.command()
@click.argument("handler", type=kinds.HANDLER, required=False)
@click.option(
    "--payload", metavar="JSON|@FILE|-", help="A JSON object: the handler's arguments.  [default: {}]"
)
@click.option("--delay", type=kinds.SECONDS, help="Due after that long: 30, 5m, 1h30m.")
@click.option("--at", type=kinds.INSTANT, help="Due at that time: 2030-01-31T09:00:00+09:00.")
@kinds.of_jobs
@click.option("--wait", is_flag=True, help="Wait for the job's end and print its result.")
@click.option("--many", metavar="FILE|-", help="Write a job for each line of JSON, all or nothing.")
@kinds.as_json
def enqueue(
    handler: str | None, payload: str | None, wait: bool, many: str | None, json_: bool, **options: Any
) -> int:
    """Write a job and print its id.

    With an application, the payload is checked against the handler's signature. --wait exits with 0 if the job
    completed, with 6 if it was buried or cancelled.

    If another job holds the unique key, --on-duplicate says what happens: its id is printed (return), it gets the new
    payload and options if it is pending (replace), this command ends with 6 (error), or nothing is written (skip).

    With --many and a HANDLER each line is a payload. Without one, each is an object with the keys handler and
    payload and, if wanted, queue, priority, delay, at, max_attempts, tags, unique, unique_key, unique_until,
    unique_for, on_duplicate, concurrency_group, concurrency_limit, cost_units, rate_limit ([100, 1]) and rate_key.

    \b
    queuety enqueue send_mail --payload '{"to": "kim@example.org"}' --delay=5m
    queuety enqueue resize --many payloads.jsonl
    """
    given = kinds.given(options)
    if "delay" in given and "at" in given:
        raise UsageError("--delay and --at exclude each other", "give one of them")
    if many is not None:
        _refuse_with_many(payload, wait, given)
        with current().caller(handlers=True) as app:
            ids = bulk.enqueue(app, handler, many, given)
        if json_:
            print_json(
                {
                    "count": len(set(ids)),
                    "first_id": min(ids, default=None),
                    "last_id": max(ids, default=None),
                }
            )
        else:
            say(f"{len(set(ids))} jobs enqueued")
        return 0
    if handler is None:
        raise UsageError("no handler is named", "queuety enqueue HANDLER --payload '{…}'")
    # Read after the options, so that a wrong one does not first wait for somebody's input.
    text = payloads.text(payload)
    with current().caller(handlers=True) as app:
        values = payloads.read(text, app.settings.payload_limit)
        handle: JobHandle | None = app.enqueue(handler, values, **given)
        if handle is None:
            talk("queuety: nothing was written: another job holds the unique key")
            print_json({"id": None}) if json_ else None
            return 0
        if wait:
            return wait_for(handle, json_)
        print_json({"id": handle.id}) if json_ else say(str(handle.id))
        return 0


def _refuse_with_many(payload: str | None, wait: bool, given: Mapping[str, Any]) -> None:
    for option, used in (
        ("--payload", payload is not None),
        ("--wait", wait),
        ("--unique-key", "unique_key" in given),
    ):
        if used:
            raise UsageError(f"--many and {option} exclude each other", "enqueue such jobs one by one")


def wait_for(handle: JobHandle, json_: bool) -> int:
    """Wait for a job's end and print its result; returns the exit code."""
    job = handle.wait()
    if json_:
        print_json(job_fields(job))
    elif job.state == "completed":
        print_json(job.result)
    if job.state == "completed":
        return 0
    error = job.error or {}
    why = f": {error.get('type')}: {error.get('message')}" if error else ""
    talk(f"queuety: job {job.id} was {job.state}{why}")
    return WrongState.exit_code
