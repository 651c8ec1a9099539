"""`enqueue`: write one job, or many from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import job_fields, print_json, say, talk
from queuety.cli.progress import Progress
from queuety.errors import PayloadError, QueuetyError, UsageError, WrongState
from queuety.units import shown

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.handle import JobHandle
    from queuety.model import NewJob

# What a line of a bulk file may say besides handler and payload.
_LINE_OPTIONS = ("queue", "priority", "delay", "at", "max_attempts", "tags")


@click.command()
@click.argument("handler", type=kinds.HANDLER, required=False)
@click.option(
    "--payload", metavar="JSON|@FILE|-", help="A JSON object: the handler's arguments.  [default: {}]"
)
@click.option("--queue", type=kinds.QUEUE, help="Instead of the handler's own.")
@click.option("--priority", type=kinds.PRIORITY, help="urgent, high, normal or low.")
@click.option("--delay", type=kinds.SECONDS, help="Due after that long: 30, 5m, 1h30m.")
@click.option("--at", type=kinds.INSTANT, help="Due at that time: 2030-01-31T09:00:00+09:00.")
@click.option("--max-attempts", type=kinds.ATTEMPTS, help="How often it is started at most.")
@click.option("--unique-key", type=kinds.UNIQUE_KEY, help="Only one job with this key may wait or run.")
@click.option("--tag", "tags", type=kinds.TAG, multiple=True, help="A name to find the job by; repeatable.")
@click.option("--wait", is_flag=True, help="Wait for the job's end and print its result.")
@click.option("--many", metavar="FILE|-", help="Write a job for each line of JSON, all or nothing.")
@kinds.as_json
def enqueue(
    handler: str | None, payload: str | None, wait: bool, many: str | None, json_: bool, **options: Any
) -> int:
    """Write a job and print its id.

    With an application, the payload is checked against the handler's signature. --wait exits with 0 if the job
    completed, with 6 if it was buried or cancelled. A job that has the unique key already is not written again:
    its id is printed.

    With --many and a HANDLER each line is a payload. Without one, each is an object with the keys handler and
    payload and, if wanted, queue, priority, delay, at, max_attempts and tags.

    \b
    queuety enqueue send_mail --payload '{"to": "kim@example.org"}' --delay=5m
    queuety enqueue resize --many payloads.jsonl
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "delay" in given and "at" in given:
        raise UsageError("--delay and --at exclude each other", "give one of them")
    if many is not None:
        _refuse_with_many(payload, wait, given)
        return _many(handler, many, given, json_)
    if handler is None:
        raise UsageError("no handler is named", "queuety enqueue HANDLER --payload '{…}'")
    # Read after the options, so that a wrong one does not first wait for somebody's input.
    text = _text(payload)
    with current().caller(handlers=True) as app:
        values = _payload(text, app.settings.payload_limit)
        handle = app.enqueue(handler, values, **given)
        if wait:
            return _wait(handle, json_)
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


def _wait(handle: JobHandle, json_: bool) -> int:
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


# ── payloads ──────────────────────────────────────────────────────────────────────────────────────────────────


def _text(payload: str | None) -> str:
    """The payload's text: as given, of a file, or of standard input."""
    if payload is None:
        return "{}"
    if payload == "-":
        return _whole(sys.stdin.buffer, "standard input")
    if payload.startswith("@"):
        with _opened(payload[1:]) as file:
            return _whole(file, payload[1:])
    return payload


def _payload(text: str, limit_bytes: int) -> dict[str, Any]:
    from queuety.strict import read

    return read(text, limit_bytes=limit_bytes)


def _whole(file: IO[bytes], name: str) -> str:
    most = 256 * 1024 * 1024  # the largest payload that a setting may allow
    raw = file.read(most + 1)
    if len(raw) > most:
        raise PayloadError(f"{name} holds more than 256 MB", "store the data elsewhere and pass its place")
    return _decoded(raw, name)


def _decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PayloadError(f"{name} is not UTF-8: byte {error.start}", "write it in UTF-8") from None


def _opened(name: str) -> IO[bytes]:
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown(name)}: {getattr(error, 'strerror', None) or error}") from None


# ── many ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _many(handler: str | None, name: str, given: dict[str, Any], json_: bool) -> int:
    progress = Progress()
    with _opened(name) as file, current().caller(handlers=True) as app:
        jobs = _told(_jobs(app, handler, file, name, given), progress)
        ids = app.write_many((job, job.payload) for job in jobs).ids
    progress.clear()
    if json_:
        print_json({"count": len(ids), "first_id": min(ids, default=None), "last_id": max(ids, default=None)})
    else:
        say(f"{len(ids)} jobs enqueued")
    return 0


def _told(jobs: Iterator[NewJob], progress: Progress) -> Iterator[NewJob]:
    for count, job in enumerate(jobs, 1):
        if count % 1000 == 0:
            progress.show(lambda count=count: f"{count} jobs written, not committed yet")  # type: ignore[misc]
        yield job


def _jobs(
    app: Queuety, handler: str | None, file: IO[bytes], name: str, given: dict[str, Any]
) -> Iterator[NewJob]:
    limit = app.settings.payload_limit
    longest = 2 * limit + 10_000
    number = 0
    while raw := file.readline(longest):
        number += 1
        try:
            if len(raw) >= longest:
                raise PayloadError(f"the line is longer than {longest} bytes")
            text = _decoded(raw, "the line")
            if not text.strip():
                continue
            if handler is not None:
                yield _job(app, handler, _payload(text, limit), given)
            else:
                from queuety.strict import read

                yield _job_of_line(app, read(text, limit_bytes=longest, what="line"), given)
        except QueuetyError as error:
            where = "standard input" if name == "-" else name
            raise UsageError(
                f"{where}, line {number}: {error.message}", error.hint or "nothing was written"
            ) from None


def _job_of_line(app: Queuety, line: dict[str, Any], given: dict[str, Any]) -> NewJob:
    from queuety.units import instant, seconds

    values = dict(line)
    handler, payload = values.pop("handler", None), values.pop("payload", {})
    for key in values:
        if key not in _LINE_OPTIONS:
            raise UsageError(
                f"unknown key {shown(key)}", f"keys are handler, payload, {', '.join(_LINE_OPTIONS)}"
            )
    if isinstance(values.get("at"), str):
        at: datetime = instant(values["at"], what="at")
        values["at"] = at
    if "delay" in values:
        values["delay"] = seconds(values["delay"], what="delay")
    if not isinstance(payload, dict):
        raise PayloadError("the payload is not an object", 'give {"name": value, …}')
    if handler is None:
        raise UsageError(
            "there is no handler", 'give {"handler": "…", "payload": {…}} or name one as argument'
        )
    return _job(app, handler, payload, {**given, **values})


def _job(app: Queuety, handler: object, payload: dict[str, Any], given: dict[str, Any]) -> NewJob:
    from queuety.handler import JobOptions, new_job
    from queuety.names import check_name
    from queuety.strict import dumps

    name = check_name("handler", handler)
    own = app.handlers.get(name)
    limit = app.settings.payload_limit
    text = own.codec.encode((), payload, limit) if own else dumps(payload, limit_bytes=limit)
    return new_job(app, name, text, JobOptions.parse(given), own.options if own else None)
