"""What a dead worker's page says about its jobs."""

from __future__ import annotations

import signal
import time

import pytest

from queuety.model import Cancelled, Interrupted, Lost, Returned, TimedOut
from queuety.process.coroner import Coroner
from queuety.process.ledger import Cut, Ledger, Mark

KILLED = int(signal.SIGKILL)  # a wait status


@pytest.fixture
def page():
    """A page whose worker holds jobs 11 to 14 and runs 12."""
    page = Ledger(1).pages[0]
    page.hold(7, [11, 12, 13, 14])
    page.claimed = time.monotonic() - 10
    page.begin(0, time.monotonic() - 9, 0.0)
    page.end(0, Mark.RETURNED)
    page.begin(1, time.monotonic() - 5, time.monotonic() + 5)
    return page


def outcomes(page, status=KILLED):
    return {job_id: outcome for job_id, (outcome, _, _) in Coroner().outcomes(page, status).items()}


def test_what_had_returned_is_done_what_was_begun_is_lost_and_the_rest_is_given_back(page):
    page.end(1, Mark.RETURNED_VALUE)
    page.begin(2, time.monotonic(), 0.0)

    found = outcomes(page)

    assert found[11] == Returned()
    assert isinstance(found[12], Returned)
    assert found[12].note is not None
    assert isinstance(found[13], Lost)
    assert "signal 9" in found[13].error.message
    assert found[14] == Interrupted()


def test_a_run_that_was_cut_at_its_time_limit_has_timed_out(page):
    page.deadline = time.monotonic() - 2
    page.cut = Cut.TIME_LIMIT

    assert isinstance(outcomes(page)[12], TimedOut)


def test_a_run_that_was_cut_for_its_cancellation_is_cancelled(page):
    page.cancel, page.cut = 12, Cut.CANCEL

    assert outcomes(page)[12] == Cancelled()


@pytest.mark.parametrize("cut", [Cut.TIME_LIMIT, Cut.CANCEL])
def test_a_run_that_was_hit_by_the_cut_of_the_one_before_it_is_given_back(page, cut):
    page.cancel, page.cut = 11, cut

    assert outcomes(page)[12] == Interrupted()


def test_a_run_cut_by_our_own_stop_is_given_back(page):
    page.cut = Cut.STOP

    assert outcomes(page)[12] == Interrupted()


def test_leaving_the_process_in_the_middle_of_a_job_is_a_loss_whatever_the_exit_code(page):
    outcome = outcomes(page, status=0)[12]

    assert isinstance(outcome, Lost)
    assert "exit code 0" in outcome.error.message
