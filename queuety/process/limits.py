"""Time limits and cancellations that a handler does not heed: what a page calls for, and doing it."""

from __future__ import annotations

import enum
import logging
import os
import signal
from contextlib import suppress

from queuety.process import host
from queuety.process.ledger import Cut, Page

log = logging.getLogger("queuety.limits")

GRACE_S = 2.0  # a handler that swallows its time limit or its cancellation is killed after that
COOPERATION_S = 5.0  # a handler that asks should_stop() is given so long before it is interrupted


class Call(enum.Enum):
    """What is to be done to a worker."""

    NOTHING = "nothing"
    KILL_FOR_TIME = "kill it: it does not heed its time limit"
    CANCEL = "raise the cancellation in it"
    KILL_FOR_CANCEL = "kill it: it does not heed its cancellation"


def call(page: Page, now: float) -> Call:
    """What the page calls for at `now`, monotonic seconds."""
    slot, deadline = page.current, page.deadline
    if slot < 0:
        return Call.NOTHING
    if deadline and now > deadline + GRACE_S:
        return Call.KILL_FOR_TIME
    if page.cancel and page.cancel == page.ids[slot]:
        patience = COOPERATION_S if page.cooperates else 0.0
        waited = now - max(page.cancel_at, page.began)
        if waited > patience + GRACE_S:
            return Call.KILL_FOR_CANCEL
        if waited > patience:
            return Call.CANCEL
    return Call.NOTHING


def enforce(page: Page, now: float) -> None:
    """Do what the page calls for: the supervisor does, who never waits; the keeper, should that be gone."""
    match call(page, now):
        case Call.KILL_FOR_TIME:
            log.warning("worker %d does not heed its time limit: killed", page.pid)
            page.cut = Cut.TIME_LIMIT
            host.kill_group(page.pid)
        case Call.KILL_FOR_CANCEL:
            log.warning("worker %d does not heed its cancellation: killed", page.pid)
            page.cut = Cut.CANCEL
            host.kill_group(page.pid)
        case Call.CANCEL:
            with suppress(ProcessLookupError):
                os.kill(page.pid, signal.SIGUSR2)
        case Call.NOTHING:
            pass
