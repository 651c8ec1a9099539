from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Raised,
    RetryAsked,
    Returned,
    Snoozed,
    TimedOut,
)
from queuety.policy.retry import Backoff
from queuety.policy.verdict import decide

PLAIN = Backoff(jitter=0)
ERROR = ErrorInfo("ValueError", "boom", "trace")
FAILURES = [Raised(ERROR), RetryAsked(ERROR), TimedOut(ERROR), Lost(ERROR)]
OTHERS = [Raised(ERROR, retryable=False), Snoozed(5), Cancelled(), Interrupted()]


def verdict(outcome, attempts=1, max_attempts=3, cancel_requested=False, backoff=PLAIN):
    return decide(
        outcome,
        attempts=attempts,
        max_attempts=max_attempts,
        cancel_requested=cancel_requested,
        backoff=backoff,
        spread=0.5,
    )


@pytest.mark.parametrize("cancel_requested", [False, True])
def test_a_handler_that_returned_is_done_even_if_cancelled_meanwhile(cancel_requested):
    outcome = Returned("1", ERROR)

    assert verdict(outcome, cancel_requested=cancel_requested) == Complete("1", ERROR)


@pytest.mark.parametrize("attempts", [3, 4])
def test_a_handler_that_returned_on_its_last_attempt_is_done(attempts):
    assert verdict(Returned(), attempts=attempts) == Complete()


@pytest.mark.parametrize("outcome", FAILURES + OTHERS)
def test_a_request_to_cancel_wins_over_everything_but_a_return(outcome):
    assert verdict(outcome, attempts=3, cancel_requested=True) == Cancel()


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_failure_waits_for_its_next_attempt_and_counts(outcome):
    settlement = verdict(outcome, attempts=2)

    assert isinstance(settlement, Again)
    assert (settlement.delay_s, settlement.counted, settlement.error) == (4, True, ERROR)


@pytest.mark.parametrize("outcome", FAILURES)
@pytest.mark.parametrize("attempts", [3, 4, 10**9])
def test_a_failure_on_the_last_attempt_is_buried_and_says_so(outcome, attempts):
    settlement = verdict(outcome, attempts=attempts)

    assert settlement == Bury(ErrorInfo("ValueError", f"boom (attempt {attempts} of 3)", "trace"))


def test_a_final_error_is_buried_at_once_and_says_so():
    settlement = verdict(Raised(ERROR, retryable=False))

    assert settlement == Bury(ErrorInfo("ValueError", "boom (attempt 1 of 3, final)", "trace"))


def test_the_wait_that_a_handler_asks_for_wins_over_the_backoff():
    settlement = verdict(RetryAsked(ERROR, after_s=0))

    assert settlement == Again(0, counted=True, error=ERROR, cause="retried")


def test_only_a_lost_run_is_told_as_recovered():
    causes = {type(outcome): verdict(outcome).cause for outcome in FAILURES}

    assert causes == {Raised: "retried", RetryAsked: "retried", TimedOut: "retried", Lost: "recovered"}


@pytest.mark.parametrize("attempts", [1, 3, 50])
def test_a_snooze_never_counts_and_never_buries(attempts):
    assert verdict(Snoozed(60), attempts=attempts) == Again(60, counted=False, error=None, cause="snoozed")


@pytest.mark.parametrize("after_s", [math.nan, math.inf, -5, 1e300])
@pytest.mark.parametrize("outcome", [Snoozed, lambda after_s: RetryAsked(ERROR, after_s)])
def test_any_wait_that_is_asked_for_can_be_stored(outcome, after_s):
    settlement = verdict(outcome(after_s))

    assert isinstance(settlement, Again)
    assert 0 <= settlement.delay_s < 3.2e9


def test_a_cancelled_run_is_cancelled_even_if_nobody_remembers_asking():
    assert verdict(Cancelled()) == Cancel()


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_run_cut_by_our_own_stop_is_given_back(attempts):
    assert verdict(Interrupted(), attempts=attempts) == GiveBack()


@given(st.integers(1, 1000), st.sampled_from(FAILURES))
def test_whatever_happens_a_job_is_started_no_more_than_max_attempts_times(max_attempts, outcome):
    starts = 1
    while isinstance(verdict(outcome, starts, max_attempts, backoff=Backoff.steps([0])), Again):
        starts += 1

    assert starts == max_attempts
