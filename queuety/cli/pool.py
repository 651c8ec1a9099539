"""`work` and `flush`: the pool of workers, as a daemon or until nothing is due."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from queuety.cli import kinds, launch
from queuety.cli.invocation import current
from queuety.cli.output import print_json, say
from queuety.errors import UsageError

if TYPE_CHECKING:
    from queuety.cli.launch import Left
    from queuety.process.supervisor import Summary

log = logging.getLogger("queuety.pool")

_ENDED = ("completed", "retried", "buried", "cancelled", "snoozed")
_CHECK_FAILED = 8


@click.command()
@click.option(
    "--queue",
    "queues",
    type=kinds.WEIGHTED,
    default="default",
    show_default=True,
    help="In order: a,b,c; with weights in shares: a,b:3,c:1.",
)
@click.option("--workers", type=kinds.WORKERS, help="Worker processes, 1 to 1000.  [default: 1]")
@click.option(
    "--min-workers", "least", type=kinds.WORKERS, help="Fewest workers of an adaptive pool.  [default: 1]"
)
@click.option("--max-workers", "most", type=kinds.WORKERS, help="Most workers: the pool follows the backlog.")
@click.option("--target-wait", "target", type=kinds.WAIT, help="Size the pool so that jobs wait no longer.")
@click.option("--once", is_flag=True, help="Run at most one job, then exit.")
@click.option("--max-time", type=kinds.SECONDS, default="0", help="Exit after that long; 0 = never.")
@click.option("--name", type=kinds.POOL_NAME, help="The pool's name.  [default: the host's]")
@click.option("--preload", is_flag=True, help="Import the application before the fork: saves memory.")
@kinds.setting_options(
    "worker_max_jobs",
    "worker_min_age",
    "worker_max_memory",
    "worker_stop_timeout",
    "worker_sleep",
    "worker_pool_scale_interval",
    "worker_pool_idle_grace",
    "stale_timeout",
    "max_execution_time",
    "max_attempts",
    "retry_backoff",
    "unknown_handler_grace",
    "result_limit",
    "payload_limit",
    "retention_days",
    "buried_retention_days",
    "log_retention_days",
    "http",
)
def work(
    queues: dict[str, int],
    workers: int | None,
    least: int | None,
    most: int | None,
    target: float | None,
    once: bool,
    max_time: float,
    name: str | None,
    preload: bool,
    **settings: Any,
) -> int:
    """Run jobs as they become due, until told to stop.

    Queues are worked in the order given. Those with a weight come last and share what the others leave, at least
    one job in 20, by their weights. With one worker --max-jobs ends the command after exactly that many jobs; with
    more, each worker is replaced after so many. TERM or Ctrl-C finishes what runs and leaves with 0;
    a second one cuts it and gives it back (75, or 130 for Ctrl-C). HUP replaces the workers one by one, TTIN and
    TTOU add and remove one, USR1 logs what each is doing.

    With --max-workers the pool is adaptive: it grows at once with the jobs that are due and claimable, while memory
    for another worker is free, and shrinks by workers that have not been needed for the idle grace. TTIN and TTOU
    then raise and lower its least number of workers.

    \b
    queuety --app shop:app work --queue=critical,default --workers=4
    queuety --app shop:app work --queue=critical,default:3,low:1
    queuety --app shop:app work --min-workers=1 --max-workers=8 --target-wait=5s
    queuety --app shop:app work --once
    """
    _need_fork("work")
    from queuety.policy.scale import Limits
    from queuety.process.plan import Mode

    asked = settings["worker_max_jobs"]
    _check_extent(workers, least, most, target, once)
    if once and (workers or 1) > 1:
        raise UsageError(
            f"--once and --workers={workers} exclude each other", "--once runs one job, in one worker"
        )
    if once and asked is not None and asked.strip() != "1":
        raise UsageError(f"--once and --max-jobs={asked} exclude each other", "give one of them")
    found = current().settings(**settings)
    # As an option to a single worker it is how many jobs the command runs; else it is when to replace a worker.
    exactly = found.worker_max_jobs if asked is not None and (most or workers or 1) == 1 else 0
    limits = Limits(least or 1, most, target_wait_s=target or 0.0) if most else None
    summary, left = launch.run(
        found,
        preload,
        None,
        queues=tuple(queues),
        weights=queues,
        workers=limits.minimum if limits else workers or 1,
        limits=limits,
        mode=Mode.ONCE if once else Mode.WORK,
        name=name or socket.gethostname(),
        max_jobs=exactly,
        max_time_s=max_time,
    )
    if once:
        _tell(summary, left)
    else:
        log.info("%s", sentence(summary, left))
    return summary.code


@click.command()
@click.option(
    "--queue",
    "queues",
    type=kinds.WEIGHTED,
    default="default",
    show_default=True,
    help="In order: a,b,c; with weights in shares: a,b:3,c:1.",
)
@click.option("--workers", type=kinds.WORKERS, default="1", show_default=True, help="Worker processes.")
@click.option(
    "--max-time", type=kinds.SECONDS, default="0", help="Exit after that long; 0 = when nothing is due."
)
@click.option("--fail-on-buried", is_flag=True, help="Exit with 8 if a job was buried.")
@kinds.setting_options(
    "worker_max_memory", "worker_stop_timeout", "stale_timeout", "max_execution_time", "retry_backoff"
)
@kinds.as_json
def flush(
    queues: dict[str, int],
    workers: int,
    max_time: float,
    fail_on_buried: bool,
    json_: bool,
    **settings: Any,
) -> int:
    """Run all that is due, then exit and say how many jobs ended how.

    What those jobs enqueue is run too. What is due later, retries included, is left and told; so is what is
    parked (for a limit, for memory, for a handler) and what a paused queue holds. With --max-time a job that
    would probably not end in time is left, too.

    \b
    queuety --app shop:app flush --queue=mail --fail-on-buried
    """
    _need_fork("flush")
    from queuety.cli.progress import Progress
    from queuety.process.ledger import Counter
    from queuety.process.plan import Mode

    progress = Progress()

    def tick(counts: list[int]) -> None:
        progress.show(lambda: f"{sum(counts[: len(_ENDED)])} jobs: {_counted(counts)}")

    with launch.aside() if json_ else contextlib.nullcontext():
        summary, left = launch.run(
            current().settings(**settings),
            False,
            tick,
            queues=tuple(queues),
            weights=queues,
            workers=workers,
            mode=Mode.FLUSH,
            name=socket.gethostname(),
            max_time_s=max_time,
        )
    progress.clear()
    if json_:
        counts = {word: summary.counts[Counter[word.upper()]] for word in (*_ENDED, "given_back")}
        print_json({**counts, **asdict(left), "reason": summary.reason})
    else:
        _tell(summary, left)
    if fail_on_buried and summary.counts[Counter.BURIED] and not summary.code:
        return _CHECK_FAILED
    return summary.code


def sentence(summary: Summary, left: Left) -> str:
    """What a pool did, in one line."""
    from queuety.process.plan import DRY

    total = sum(summary.counts[: len(_ENDED)])
    parts = [f"{total} job{'' if total == 1 else 's'}{': ' if total else ''}{_counted(summary.counts)}"]
    if left.due:
        parts.append(f"{left.due} left that there was no time or place for")
    if left.later:
        parts.append(f"{left.later} due later")
    if left.parked:
        parts.append(f"{left.parked} parked")
    if summary.reason not in ("", DRY, "done"):
        parts.append(f"stopped: {summary.reason}")
    return "; ".join(parts)


def _check_extent(
    workers: int | None, least: int | None, most: int | None, target: float | None, once: bool
) -> None:
    """Refuse sizes that contradict each other."""
    given = {"--min-workers": least, "--max-workers": most}
    named = " ".join(f"{option}={value}" for option, value in given.items() if value is not None)
    if target is not None and most is None:
        raise UsageError(
            "--target-wait needs --max-workers", "only a pool that may grow can be sized for a wait"
        )
    if not named:
        return
    if once:
        raise UsageError(f"--once and {named} exclude each other", "--once runs one job, in one worker")
    if workers is not None:
        raise UsageError(
            f"--workers={workers} and {named} exclude each other",
            "give --workers for a fixed size, or --min-workers and --max-workers for one that follows the backlog",
        )
    if most is None:
        raise UsageError(f"{named} needs --max-workers", "give both, or --workers for a fixed size")
    if least is not None and least > most:
        raise UsageError(
            f"--min-workers={least} is more than --max-workers={most}", "give a maximum that is not smaller"
        )


def _tell(summary: Summary, left: Left) -> None:
    say(sentence(summary, left))
    for queue, count in left.paused.items():
        say(f"queue {queue} is paused: {count} job{'' if count == 1 else 's'} left there")


def _counted(counts: list[int]) -> str:
    return ", ".join(f"{count} {word}" for count, word in zip(counts, _ENDED, strict=False) if count)


def _need_fork(command: str) -> None:
    if not hasattr(os, "fork"):
        raise UsageError(
            f"{command} forks, which this system cannot: here only the caller's side works",
            "run the pool on Linux or macOS",
        )
