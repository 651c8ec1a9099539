"""What a page calls for: time limits and cancellations that are not heeded."""

from __future__ import annotations

import pytest

from queuety.process.ledger import Ledger, Page
from queuety.process.limits import COOPERATION_S, GRACE_S, Call, call

JOB = 7


@pytest.fixture
def page() -> Page:
    """A worker that has been running JOB since second 100, with a limit of ten."""
    page = Ledger(1).pages[0]
    page.hold(3, [JOB])
    page.begin(0, 100.0, 110.0)
    return page


def test_a_run_within_its_limit_is_left_alone(page):
    assert call(page, 109.0) is Call.NOTHING


def test_a_handler_has_a_moment_to_heed_its_time_limit(page):
    assert call(page, 110.0 + GRACE_S - 0.1) is Call.NOTHING


def test_a_handler_that_does_not_heed_its_time_limit_is_killed(page):
    assert call(page, 110.0 + GRACE_S + 0.1) is Call.KILL_FOR_TIME


def test_a_worker_that_runs_nothing_is_left_alone(page):
    page.current = -1

    assert call(page, 1000.0) is Call.NOTHING


def test_a_cancelled_run_is_interrupted_at_once(page):
    page.cancel_at, page.cancel = 101.0, JOB

    assert call(page, 101.1) is Call.CANCEL


def test_a_cooperating_handler_is_given_time_to_end_by_itself(page):
    page.cancel_at, page.cancel, page.cooperates = 101.0, JOB, 1

    assert call(page, 101.0 + COOPERATION_S - 0.1) is Call.NOTHING
    assert call(page, 101.0 + COOPERATION_S + 0.1) is Call.CANCEL


def test_a_handler_that_does_not_heed_its_cancellation_is_killed(page):
    page.cancel_at, page.cancel = 101.0, JOB

    assert call(page, 101.0 + GRACE_S + 0.1) is Call.KILL_FOR_CANCEL


def test_another_jobs_cancellation_does_not_touch_this_one(page):
    page.cancel_at, page.cancel = 101.0, JOB + 1

    assert call(page, 109.0) is Call.NOTHING
