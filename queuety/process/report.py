"""One log line for each attempt that did not end well, and how settlements are counted."""

from __future__ import annotations

import logging
from typing import assert_never

from queuety.model import Again, Bury, Cancel, Complete, GiveBack, Lost, Outcome, Settlement, TimedOut
from queuety.process import running
from queuety.process.figures import Cause, Sheet
from queuety.process.ledger import Counter


def counter_of(settlement: Settlement) -> Counter:
    match settlement:
        case Complete():
            return Counter.COMPLETED
        case Again(cause="snoozed"):
            return Counter.SNOOZED
        case Again():
            return Counter.RETRIED
        case Bury():
            return Counter.BURIED
        case Cancel():
            return Counter.CANCELLED
        case GiveBack():
            return Counter.GIVEN_BACK
        case _:
            assert_never(settlement)


def count(
    sheet: Sheet | None,
    queue: str,
    handler: str,
    outcome: Outcome,
    settlement: Settlement,
    seconds: float | None,
) -> None:
    """Count a run's end among the figures of its handler, if there are any. seconds: None if they are not known."""
    if sheet is None:
        return
    cause = None
    if isinstance(settlement, Bury) or (isinstance(settlement, Again) and settlement.counted):
        cause = (
            Cause.TIMED_OUT
            if isinstance(outcome, TimedOut)
            else Cause.LOST
            if isinstance(outcome, Lost)
            else Cause.ERROR
        )
    sheet.ended(queue, handler, counter_of(settlement), cause, seconds)


def tell(
    log: logging.Logger,
    job_id: int,
    handler: str,
    queue: str,
    attempt: int,
    max_attempts: int,
    settlement: Settlement,
) -> None:
    """Log what became of a run; a plain success is not worth a line."""
    level = _level(settlement)
    if not log.isEnabledFor(level):
        return
    extra = {"queuety": {"event": _event(settlement), **running.of(job_id, handler, queue, attempt)}}
    head = f"job {job_id} {handler}: attempt {attempt} of {max_attempts}"
    match settlement:
        case Complete(note=None):
            said = f"{head} completed"
        case Complete(note=note):
            said = f"{head} completed, but {note and note.message}"
        case Again(delay, _, error, cause):
            reason = f": {error.type}: {_line(error.message)}" if error else ""
            said = f"{head} {'failed' if cause == 'retried' else cause}, next in {delay:.1f} s{reason}"
        case Bury(error):
            said = f"{head} failed, buried: {error.type}: {_line(error.message)}"
        case Cancel():
            said = f"{head} cancelled"
        case GiveBack():
            said = f"job {job_id} {handler}: given back"
        case _:
            assert_never(settlement)
    log.log(level, "%s", said, extra=extra)


def _level(settlement: Settlement) -> int:
    match settlement:
        case Complete(note=note):
            return logging.WARNING if note else logging.DEBUG
        case Again(counted=counted):
            return logging.WARNING if counted else logging.INFO
        case Bury():
            return logging.ERROR
        case _:
            return logging.INFO


def _event(settlement: Settlement) -> str:
    """One word for machines: completed, retried, snoozed, buried, cancelled, given_back …"""
    return settlement.cause if isinstance(settlement, Again) else counter_of(settlement).name.lower()


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
