"""What the outcome of a run does to its job: the one road out of `processing`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from queuety.model import (
    Again,
    Bury,
    Cancel,
    Cancelled,
    Complete,
    ErrorInfo,
    GiveBack,
    Interrupted,
    Lost,
    Outcome,
    Raised,
    RetryAsked,
    Returned,
    Settlement,
    Snoozed,
    TimedOut,
)
from queuety.policy.retry import LONGEST_S, Backoff


def decide(
    outcome: Outcome,
    *,
    attempts: int,
    max_attempts: int,
    cancel_requested: bool,
    backoff: Backoff,
    spread: float,
) -> Settlement:
    """Turn the outcome of a run into what is written.

    attempts: starts that have counted so far, this run included, >= 1.
    spread:   uniform in [0, 1), for the jitter.
    A handler that returned is done, even if somebody asked to cancel meanwhile. A request to cancel wins over
    everything else. What failed `max_attempts` times, however, is buried.
    """
    if isinstance(outcome, Returned):
        return Complete(outcome.result, outcome.note)
    if cancel_requested:
        return Cancel()
    match outcome:
        case Cancelled():
            return Cancel()
        case Interrupted():
            return GiveBack()
        case Snoozed(after_s, _):
            return Again(wait(after_s), counted=False, error=None, cause="snoozed")
        case Raised(error, False):
            return Bury(_numbered(error, attempts, max_attempts, ", final"))
        case Raised(error) | TimedOut(error) | Lost(error) | RetryAsked(error):
            if attempts >= max_attempts:
                return Bury(_numbered(error, attempts, max_attempts))
            asked = outcome.after_s if isinstance(outcome, RetryAsked) else None
            delay_s = backoff.delay(attempts, spread) if asked is None else wait(asked)
            cause = "recovered" if isinstance(outcome, Lost) else "retried"
            return Again(delay_s, counted=True, error=error, cause=cause)
        case _:
            assert_never(outcome)


def wait(after_s: float) -> float:
    """Seconds that a handler asked for, made storable: 0 to a century; nonsense is 0."""
    return min(max(float(after_s), 0.0), LONGEST_S) if math.isfinite(after_s) else 0.0


def _numbered(error: ErrorInfo, attempts: int, max_attempts: int, more: str = "") -> ErrorInfo:
    """The error with the attempt it ended at, so that a buried job tells why it got no further one."""
    text = f"(attempt {attempts} of {max_attempts}{more})"
    return replace(error, message=f"{error.message} {text}" if error.message else text)
