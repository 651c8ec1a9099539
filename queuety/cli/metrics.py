"""`metrics`: what handlers have come to lately."""

from __future__ import annotations

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say, span
from queuety.plain import plain

FIGURES = ("completed", "failed", "cancelled", "buried", "error rate", "mean", "p95", "pending", "oldest")


@click.command()
@click.option(
    "--window", type=kinds.WINDOW, default="1h", show_default=True, help="How far back: 15m, 24h, 7d."
)
@click.option(
    "--pending-longer-than",
    "longer",
    type=kinds.SECONDS,
    default="5m",
    show_default=True,
    help="Count pending jobs that were due longer ago.",
)
@kinds.limited(100)
@kinds.as_json
def metrics(window: float, longer: float, limit: int, json_: bool) -> None:
    """What handlers came to within a window, and how many of their jobs have been pending for long.

    failed counts attempts, also those that were tried again; the error rate is their share of all attempts that
    ended. mean and p95 are of the runs that completed a job. Reads what ended within the window, up to a million jobs.

    \b
    queuety metrics --window=24h
    queuety metrics --pending-longer-than=10m --json
    """
    with current().caller() as app:
        found = app.metrics(window=window, pending_longer_than=longer)
    # The ones with most to worry about first: a list that is cut must not hide them.
    rows = sorted(found.handlers, key=lambda one: (-one.buried, -one.failed, -one.pending, one.handler))
    rows = rows[:limit]
    if json_:
        print_json(
            {
                "window_s": found.window_s,
                "pending_longer_than_s": found.longer_s,
                "capped": found.capped,
                "handlers": [{**plain(row), "error_rate": row.error_rate} for row in rows],
            }
        )
        return
    print_table(
        ["handler", *FIGURES],
        [
            (
                row.handler,
                row.completed,
                row.failed,
                row.cancelled,
                row.buried,
                "" if row.error_rate is None else f"{100 * row.error_rate:.1f} %",
                _brief(row.mean_s),
                _brief(row.p95_s),
                f"{row.pending} ({row.parked} parked)" if row.parked else row.pending,
                span(row.oldest_s),
            )
            for row in rows
        ],
        right=FIGURES,
    )
    if found.capped:
        say("more jobs ended within the window than were read: take a shorter one")


def _brief(seconds: float | None) -> str:
    """A run's duration: short ones in milliseconds."""
    if seconds is not None and seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    return span(seconds)
