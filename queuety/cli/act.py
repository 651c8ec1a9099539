"""Commands that change jobs: cancel, retry, bury, delete, purge, recover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from queuety.cli import kinds, several
from queuety.cli.invocation import current
from queuety.cli.output import print_json, say
from queuety.cli.progress import Progress
from queuety.errors import UsageError
from queuety.model import State

IDS = click.argument("ids", metavar="ID…", type=kinds.JOB_ID, nargs=-1)


@click.command()
@IDS
@kinds.as_json
def cancel(ids: tuple[int, ...], json_: bool) -> int:
    """Cancel jobs: those that wait at once; those that run are told to stop and end soon.

    \b
    queuety cancel 4711 4712
    """

    def one(app: Any, job_id: int) -> str:
        return "cancelled" if app.cancel(job_id) is State.CANCELLED else "told to stop"

    return _each(ids, one, json_)


@click.command()
@IDS
@click.option("--buried", is_flag=True, help="All buried jobs, or those of a handler or queue.")
@click.option("--handler", type=kinds.HANDLER, help="With --buried: only of this handler.")
@click.option("--queue", type=kinds.QUEUE, help="With --buried: only of this queue.")
@click.option("--limit", type=kinds.LIMIT, help="With --buried: at most so many, the oldest first.")
@kinds.bulk
@kinds.as_json
def retry(
    ids: tuple[int, ...],
    buried: bool,
    handler: str | None,
    queue: str | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    json_: bool,
) -> int:
    """Send buried or cancelled jobs back, due now, with a fresh budget of attempts; their history stays.

    \b
    queuety retry 4711
    queuety retry --buried --handler=send_mail --yes
    """
    if buried and ids:
        raise UsageError("IDs and --buried exclude each other", "give one of them")
    if not buried:
        for option, given in (
            ("--handler", handler),
            ("--queue", queue),
            ("--limit", limit),
            ("--dry-run", dry_run),
        ):
            if given:
                raise UsageError(f"{option} goes with --buried only", "queuety retry --buried …")
        return _each(ids, _retry, json_)

    from queuety.store import verbs

    ask = kinds.must_ask(yes=yes, dry_run=dry_run)
    progress = Progress()
    with current().caller() as app, app.connection() as conn:

        def send(dry: bool) -> int:
            return verbs.retry_buried(
                conn,
                handler=handler,
                queue=queue,
                limit=limit,
                dry_run=dry,
                progress=lambda count: progress.show(lambda: f"{count} jobs retried"),
            )

        if ask and not kinds.agreed(f"Retry {_jobs(send(True))}?"):
            return 0
        count = send(dry_run)
    progress.clear()
    if json_:
        print_json({"retried": 0 if dry_run else count, "found": count, "dry_run": dry_run})
    else:
        say(f"{_jobs(count)} {'would be retried' if dry_run else 'retried'}")
    return 0


def _retry(app: Any, job_id: int) -> str:
    app.retry(job_id)
    return "retried"


@click.command()
@IDS
@click.option("--reason", default="buried by hand", show_default=True, help="Kept as the job's error.")
@kinds.as_json
def bury(ids: tuple[int, ...], reason: str, json_: bool) -> int:
    """Bury jobs that wait: they are kept for a human, and do not run.

    \b
    queuety bury 4711 --reason="customer has left"
    """

    def one(app: Any, job_id: int) -> str:
        app.bury(job_id, reason)
        return "buried"

    return _each(ids, one, json_)


@click.command()
@IDS
@kinds.as_json
def delete(ids: tuple[int, ...], json_: bool) -> int:
    """Delete jobs that do not run, with their journals.

    \b
    queuety delete 4711
    """

    def one(app: Any, job_id: int) -> str:
        app.delete(job_id)
        return "deleted"

    return _each(ids, one, json_)


@click.command()
@click.option("--older-than", type=kinds.SECONDS, default="0", help="Ended longer ago than that: 7d, 12h.")
@click.option("--state", type=kinds.STATE, help="Only completed, buried or cancelled ones.")
@click.option("--queue", type=kinds.QUEUE, help="Only of this queue.")
@kinds.bulk
@kinds.as_json
def purge(
    older_than: float, state: State | None, queue: str | None, dry_run: bool, yes: bool, json_: bool
) -> int:
    """Delete jobs that have ended, with their journals. Waiting and running ones are never touched.

    \b
    queuety purge --older-than=7d --state=completed --dry-run
    """
    if state is not None and not state.final:
        raise UsageError(f"--state={state}: such a job has not ended", "give completed, buried or cancelled")
    from queuety.store import verbs

    ask = kinds.must_ask(yes=yes, dry_run=dry_run)
    progress = Progress()
    with current().caller() as app, app.connection() as conn:

        def run(dry: bool) -> Any:
            return verbs.purge(
                conn,
                older_than_s=older_than,
                state=state,
                queue=queue,
                dry_run=dry,
                progress=lambda count: progress.show(lambda: f"{count} jobs deleted"),
            )

        if ask and not kinds.agreed(f"Delete {_jobs(run(True).total)}?"):
            return 0
        done = run(dry_run)
    progress.clear()
    counts = {"completed": done.completed, "cancelled": done.cancelled, "buried": done.buried}
    if json_:
        print_json({**counts, "total": done.total, "dry_run": dry_run})
    else:
        parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        verb = "would be deleted" if dry_run else "deleted"
        say(f"{_jobs(done.total)} {verb}{f': {parts}' if parts else ''}")
    return 0


@click.command()
@kinds.as_json
def recover(json_: bool) -> int:
    """Settle what dead workers left behind. Running pools do it by themselves.

    \b
    queuety recover
    """
    with current().caller() as app:
        done = app.recover()
    counts = {
        "retried": done.retried,
        "buried": done.buried,
        "cancelled": done.cancelled,
        "given_back": done.given_back,
    }
    if json_:
        print_json({**counts, "total": done.total})
    else:
        parts = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in counts.items())
        say(f"{_jobs(done.total)} recovered: {parts}")
    return 0


def _each(ids: tuple[int, ...], verb: Callable[[Any, int], str], json_: bool) -> int:
    return several.each("job", "id", ids, verb, json_)


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
