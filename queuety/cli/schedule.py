"""`schedule`: make, change and look at schedules while everything runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from queuety.cli import kinds, payloads, several
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say, talk
from queuety.errors import ScheduleNotFound, UsageError
from queuety.plain import moment, schedule_fields, tick_fields
from queuety.units import seconds_text

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.features.schedules import Planned
    from queuety.model import NewSchedule, Schedule, Tick

LAST_SKIPS = 3
MOST_TICKS = 1000  # as many as are counted of a gap

KEYS = click.argument("keys", metavar="KEY…", type=kinds.KEY, nargs=-1)
CADENCE = (
    click.option(
        "--cron", metavar="FIELDS", help="Five fields, six with seconds first, or @hourly and friends."
    ),
    click.option("--every", metavar="INTERVAL", help='"30 minutes", 90, 1h30m.'),
    click.option(
        "--timezone", metavar="ZONE", help="In which --cron is read: Asia/Seoul.  [default: the setting]"
    ),
    click.option("--start", type=kinds.INSTANT, help="No tick before: 2030-01-31T09:00:00+09:00."),
    click.option("--end", type=kinds.INSTANT, help="No tick from then on."),
)


def cadence_options(command: kinds.F) -> kinds.F:
    """The options that say when a schedule ticks."""
    for option in reversed(CADENCE):
        command = option(command)
    return command


@click.group()
def schedule() -> None:
    """Schedules: which jobs are enqueued when.

    Every running pool enqueues them, and so does a scheduler, a process of its own.

    \b
    queuety schedule add nightly report --cron "0 3 * * *" --timezone Asia/Seoul
    queuety schedule list
    queuety schedule preview nightly
    """


@schedule.command("list")
@click.option("--handler", type=kinds.HANDLER, help="Only of this handler.")
@kinds.limited()
@kinds.as_json
def listing(handler: str | None, limit: int, json_: bool) -> None:
    """List schedules by key: when they tick, the next tick and the last one that ran.

    \b
    queuety schedule list --handler=report
    """
    with current().caller() as app:
        found = app.schedules.list(handler=handler, limit=limit)
    if json_:
        print_json([schedule_fields(one) for one in found])
        return
    print_table(
        ["key", "handler", "cadence", "zone", "state", "next", "last", "note"],
        [
            (
                one.key,
                one.handler,
                _cadence(one),
                one.timezone if one.cron else "",
                one.state,
                one.next_at if one.state == "active" else None,
                one.last_at,
                _note(one),
            )
            for one in found
        ],
    )


@schedule.command()
@click.argument("key", type=kinds.KEY)
@click.argument("handler", type=kinds.HANDLER, required=False)
@cadence_options
@click.option(
    "--payload", metavar="JSON|@FILE|-", help="A JSON object: the arguments of each job.  [default: {}]"
)
@click.option("--jitter", type=kinds.SECONDS, help="Each job is due up to that much later: 30s.")
@click.option(
    "--overlap",
    metavar="allow|skip|buffer",
    help="While the job before has not ended: run the tick all the same, skip it, or let one wait.  [default: allow]",
)
@click.option(
    "--missed",
    metavar="once|skip|all",
    help="Ticks whose time passed unseen: one runs for all, none, or each.  [default: once]",
)
@click.option(
    "--missed-limit", type=kinds.PLACES, help="With --missed=all: the latest so many.  [default: 100]"
)
@kinds.of_jobs
@click.option(
    "--replace", is_flag=True, help="Change the schedule that has the key; its pause and history stay."
)
@click.option("--anyway", is_flag=True, help="Even if no living worker has the handler.")
@kinds.as_json
def add(
    key: str,
    handler: str | None,
    payload: str | None,
    replace: bool,
    anyway: bool,
    json_: bool,
    **options: Any,
) -> None:
    """Make a schedule of a handler; without HANDLER the key names that too.

    Everything is checked first. With an application, its handlers count and the payload is checked against the
    handler's signature; without, a living worker must have the handler.

    \b
    queuety schedule add nightly report --cron="0 3 * * *" --timezone=Asia/Seoul --payload='{"days": 1}'
    queuety schedule add ping --every="30 seconds" --overlap=skip
    """
    given = kinds.given(options)
    text = payloads.text(payload)
    with current().caller(handlers=True) as app:
        given["payload"] = payloads.read(text, app.settings.payload_limit)
        before = _declared_by(app, key) if replace else None
        made = app.schedules.add(handler or key, name=key, replace=replace, anyway=anyway, **given)
        nameless = made.cron and not options["timezone"] and app.settings.timezone is None
    if nameless:
        talk("queuety: no time zone is named: the cron expression is read in UTC — see --timezone")
    if before:
        talk(f"queuety: {before} declares schedule {key} in code: its next start makes it that again")
    if json_:
        print_json(schedule_fields(made))
    else:
        say(f"schedule {key} {'is set' if replace else 'added'}; {_next(made)}")


@schedule.command()
@KEYS
@kinds.as_json
def remove(keys: tuple[str, ...], json_: bool) -> int:
    """Remove schedules. Their jobs stay. One that is declared in code comes back when its application starts.

    \b
    queuety schedule remove nightly
    """

    def one(app: Queuety, key: str) -> str:
        was = app.schedules.remove(key)
        if was.declared_by and was.retired_at is None:
            return f"removed, but {was.declared_by} declares it in code: its next start brings it back"
        return "removed"

    return several.each("schedule", "key", keys, one, json_)


@schedule.command()
@KEYS
@click.option("--reason", default="", help="Shown by `schedule list`.")
@kinds.as_json
def pause(keys: tuple[str, ...], reason: str, json_: bool) -> int:
    """Pause schedules: once this returns they tick no more. A pause outlives restarts of what declares them.

    \b
    queuety schedule pause nightly --reason="the provider is down"
    """

    def one(app: Queuety, key: str) -> str:
        app.schedules.pause(key, reason=reason)
        return "is paused"

    return several.each("schedule", "key", keys, one, json_)


@schedule.command()
@KEYS
@kinds.as_json
def resume(keys: tuple[str, ...], json_: bool) -> int:
    """Let paused schedules go on. What passed meanwhile is noted as skipped.

    \b
    queuety schedule resume nightly
    """

    def one(app: Queuety, key: str) -> str:
        return "goes on" if app.schedules.resume(key) else "was not paused"

    return several.each("schedule", "key", keys, one, json_)


@schedule.command()
@click.argument("key", type=kinds.KEY)
@click.option("--wait", is_flag=True, help="Wait for the job's end and print its result.")
@kinds.as_json
def run(key: str, wait: bool, json_: bool) -> int:
    """Write a job of a schedule now, besides its rhythm, and print its id. A paused one can be run, too.

    \b
    queuety schedule run nightly --wait
    """
    from queuety.cli.enqueue import wait_for
    from queuety.handle import JobHandle

    with current().caller() as app:
        job_id = app.schedules.run(key)
        if wait:
            return wait_for(JobHandle(app, job_id), json_)
    print_json({"id": job_id}) if json_ else say(str(job_id))
    return 0


@schedule.command()
@click.argument("key", type=kinds.KEY, required=False)
@cadence_options
@click.option("--count", type=kinds.PREVIEWED, default="5", show_default=True, help="How many ticks.")
@click.option("--from", "after", type=kinds.INSTANT, help="Those after that time.  [default: now]")
@kinds.as_json
def preview(key: str | None, count: int, after: datetime | None, json_: bool, **options: Any) -> None:
    """Show the next ticks of a schedule, or of --cron or --every, in its own zone and in UTC.

    Notes say where the zone's clock changes. Of a schedule the last skips and their reasons are shown as well.

    \b
    queuety schedule preview nightly
    queuety schedule preview --cron="30 2 * * *" --timezone=America/New_York --from=2026-03-07T12:00:00Z
    """
    given = kinds.given(options)
    if (key is None) == (not given):
        raise UsageError("give either a schedule's key, or --cron or --every", "see `queuety schedule list`")
    one: Schedule | NewSchedule
    skips: list[Tick] = []
    if key is None:
        from queuety.app import Queuety
        from queuety.schedule import cadence_only

        settings = current().settings()
        one = cadence_only(settings, given)
        ticks = Queuety(settings.database_url).schedules.preview(
            count=count, after=after, **_zoned(given, one)
        )
    else:
        with current().caller() as app:
            one = app.schedules.find(key)
            ticks = app.schedules.preview(key, count=count, after=after)
            skips = list(app.schedules.history(key, kind="skip", limit=LAST_SKIPS))
    rows = _rows(ticks, one.timezone)
    if json_:
        print_json(
            {
                "key": key,
                "timezone": one.timezone,
                "ticks": rows,
                "skips": [tick_fields(tick) for tick in skips],
            }
        )
        return
    for line in _standing(one):
        say(line)
    _print_ticks(rows, one)
    if not rows:
        say("no tick is to come")
    if skips:
        say("last skips:")
        print_table(["tick", "ticks", "reason"], [(_span(tick), _count(tick), tick.reason) for tick in skips])


@schedule.command()
@click.argument("key", type=kinds.KEY)
@click.option("--kind", metavar="run|skip|fail", help="Only these ticks.")
@kinds.limited()
@kinds.as_json
def history(key: str, kind: str | None, limit: int, json_: bool) -> None:
    """Show the ticks that ran, were skipped or failed, the latest first, and how their jobs ended.

    \b
    queuety schedule history nightly --kind=skip
    """
    with current().caller() as app:
        found = app.schedules.history(key, kind=kind, limit=limit)
    if json_:
        print_json([tick_fields(tick) for tick in found])
        return
    print_table(
        ["tick", "kind", "ticks", "job", "ended", "reason"],
        [
            (
                _span(tick),
                tick.kind,
                _count(tick),
                tick.job_id,
                f"{tick.ended} {_seconds(tick.ended_at)}" if tick.ended and tick.ended_at else tick.ended,
                tick.reason or _error(tick),
            )
            for tick in found
        ],
        right=["ticks", "job"],
    )


def _print_ticks(rows: list[dict[str, Any]], one: Schedule | NewSchedule) -> None:
    times = {one.timezone: "local", "UTC": "at"} | ({"due": "due"} if one.jitter_s else {})
    print_table(
        [*times, "note"],
        [(*(row[name].replace("T", " ") for name in times.values()), row["note"]) for row in rows],
    )


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _cadence(one: Schedule) -> str:
    return one.cron or f"every {seconds_text(one.every_s or 0)}"


def _note(one: Schedule) -> str:
    """The one thing that is most worth saying."""
    if one.broken:
        return one.broken
    if one.retired_at:
        return f"{one.declared_by} declares it no more"
    if one.paused_at:
        return one.pause_reason or ""
    if one.buffered_at:
        return f"a tick waits for the end of job {one.last_job}"
    return f"declared by {one.declared_by}" if one.declared_by else ""


def _declared_by(app: Queuety, key: str) -> str | None:
    try:
        return app.schedules.find(key).declared_by
    except ScheduleNotFound:
        return None


def _next(one: Schedule) -> str:
    if one.paused_at:
        return "it is paused"
    if one.next_at is None:
        return "no tick is to come"
    return f"next tick {_local(one.next_at, one.timezone).replace('T', ' ')} ({moment(one.next_at)})"


def _standing(one: Schedule | NewSchedule) -> list[str]:
    """Why the ticks that follow may not come."""
    state = getattr(one, "state", "active")
    if state == "paused":
        return [f"schedule {one.key} is paused{f': {one.pause_reason}' if one.pause_reason else ''}"]  # type: ignore[union-attr]
    return [f"schedule {one.key} is retired: it does not tick"] if state == "retired" else []


def _zoned(given: dict[str, Any], one: Schedule | NewSchedule) -> dict[str, Any]:
    return {**given, "timezone": one.timezone}


def _rows(ticks: Any, zone: str) -> list[dict[str, Any]]:
    before: datetime | None = None
    rows = []
    for tick in ticks:
        rows.append(_row(tick, zone, before))
        before = tick.at
    return rows


def _row(tick: Planned, zone: str, before: datetime | None) -> dict[str, Any]:
    return {
        "at": moment(tick.at),
        "local": _local(tick.at, zone),
        "due": moment(tick.due),
        "note": _clock(tick.at, zone, before),
    }


def _clock(at: datetime, zone: str, before: datetime | None) -> str | None:
    """What the zone's clock does at a tick, or has done since the tick before."""
    here = ZoneInfo(zone)
    now = at.astimezone(here)
    just = (at - timedelta(seconds=1)).astimezone(here)
    if just.utcoffset() != now.utcoffset() and now.replace(tzinfo=None) > just.replace(tzinfo=None):
        return f"right after a gap: the clock has jumped from {just + timedelta(seconds=1):%H:%M}"
    if now.fold:
        return "in a repeated hour, the second time"
    if now.utcoffset() != now.replace(fold=1).utcoffset():
        return "in an hour that will be repeated"
    if before is not None and before.astimezone(here).utcoffset() != now.utcoffset():
        return "the clock has changed"
    return None


def _local(at: datetime, zone: str) -> str:
    return at.astimezone(ZoneInfo(zone)).isoformat()


def _seconds(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _span(tick: Tick) -> str:
    return (
        f"{_seconds(tick.at)} to {_seconds(tick.through)}"
        if tick.through and tick.through > tick.at
        else _seconds(tick.at)
    )


def _count(tick: Tick) -> str:
    return f"{tick.ticks}{' or more' if tick.ticks >= MOST_TICKS else ''}"


def _error(tick: Tick) -> str:
    return f"{tick.error.get('type')}: {tick.error.get('message')}" if tick.error else ""
