"""One log line for each attempt that did not end well, and how settlements are counted."""

from __future__ import annotations

import logging
from typing import assert_never

from queuety.model import Again, Bury, Cancel, Complete, GiveBack, Lost, Outcome, Settlement, TimedOut
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
    log: logging.Logger, job_id: int, handler: str, attempt: int, max_attempts: int, settlement: Settlement
) -> None:
    """Log what became of a run; a plain success is not worth a line."""
    head = f"job {job_id} {handler}: attempt {attempt} of {max_attempts}"
    match settlement:
        case Complete(note=None):
            log.debug("%s completed", head)
        case Complete(note=note):
            log.warning("%s completed, but %s", head, note and note.message)
        case Again(delay, counted, error, cause):
            reason = f": {error.type}: {_line(error.message)}" if error else ""
            level = logging.WARNING if counted else logging.INFO
            log.log(
                level,
                "%s %s, next in %.1f s%s",
                head,
                "failed" if cause == "retried" else cause,
                delay,
                reason,
            )
        case Bury(error):
            log.error("%s failed, buried: %s: %s", head, error.type, _line(error.message))
        case Cancel():
            log.info("%s cancelled", head)
        case GiveBack():
            log.info("job %d %s: given back", job_id, handler)
        case _:
            assert_never(settlement)


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
