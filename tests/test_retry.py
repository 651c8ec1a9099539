from __future__ import annotations

import json
import math
import socket
import urllib.error

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import Permanent, UsageError
from queuety.policy.retry import Backoff, check_policy, classify

SPREADS = st.floats(0, 1, exclude_max=True)
WAITS = st.floats(0, 10**6)


@st.composite
def backoffs(draw):
    if draw(st.booleans()):
        return Backoff.steps(draw(st.lists(WAITS, min_size=1, max_size=5)), jitter=draw(st.floats(0, 1)))
    initial, longest = sorted([draw(WAITS), draw(WAITS)])
    kind = draw(st.sampled_from(["exponential", "linear", "fixed"]))
    return Backoff(kind, initial=initial, max=longest, jitter=draw(st.floats(0, 1)))


@given(backoffs(), st.one_of(st.integers(-5, 20), st.integers(0, 10**400)), SPREADS)
def test_every_wait_is_finite_and_between_zero_and_the_maximum(backoff, attempts, spread):
    wait = backoff.delay(attempts, spread)

    assert math.isfinite(wait)
    assert 0 <= wait <= backoff.max


@given(backoffs(), st.integers(1, 100), SPREADS)
def test_chance_takes_off_no_more_than_the_jitter(backoff, attempts, spread):
    whole = backoff.delay(attempts, 0)

    assert whole * (1 - backoff.jitter) - 1e-6 <= backoff.delay(attempts, spread) <= whole


@given(backoffs(), st.integers(1, 100))
def test_waits_do_not_shrink_unless_steps_say_so(backoff, attempts):
    if backoff.kind != "steps":
        assert backoff.delay(attempts, 0) <= backoff.delay(attempts + 1, 0)


@given(backoffs())
def test_a_stored_backoff_reads_back_equal(backoff):
    assert Backoff.from_json(backoff.to_json()) == backoff
    assert Backoff.from_json(json.loads(backoff.to_json())) == backoff


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(), [2, 4, 8, 16, 32]),
        (Backoff("linear", initial=3), [3, 6, 9, 12, 15]),
        (Backoff("fixed", initial=3), [3, 3, 3, 3, 3]),
        (Backoff(initial=2, max=5), [2, 4, 5, 5, 5]),
        (Backoff(initial=0), [0, 0, 0, 0, 0]),
        (Backoff.steps([1, 10, 5]), [1, 10, 5, 5, 5]),
    ],
)
def test_each_kind_grows_as_documented(backoff, waits):
    assert [backoff.delay(n, 0) for n in range(1, 6)] == waits


@pytest.mark.parametrize("attempts", [1023, 1024, 1025, 10**9, 10**30])
def test_any_number_of_attempts_waits_the_maximum(attempts):
    assert Backoff().delay(attempts, 0) == 3600


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "often"}, {"initial": -1}, {"initial": math.nan}, {"max": math.inf}, {"jitter": 1.5},
        {"initial": "2"}, {"initial": True}, {"initial": 10, "max": 5}, {"max": 10**400}, {"kind": "steps"},
        {"times": (1.0,)}, {"jitter": None},
    ],
)  # fmt: skip
def test_a_backoff_that_cannot_be_meant_is_refused(arguments):
    with pytest.raises(UsageError):
        Backoff(**arguments)


@pytest.mark.parametrize("steps", [[], [-1], [math.nan], ["1"], [True], [None], range(1001)])
def test_steps_that_cannot_be_meant_are_refused(steps):
    with pytest.raises(UsageError):
        Backoff.steps(steps)


def test_a_backoff_is_given_by_name_list_value_or_not_at_all():
    default = Backoff(initial=7)

    assert Backoff.parse("linear", default) == Backoff("linear")
    assert Backoff.parse([1, 2], default) == Backoff.steps([1, 2])
    assert Backoff.parse(Backoff(initial=5), default) == Backoff(initial=5)
    assert Backoff.parse(None, default) is default


@pytest.mark.parametrize("spec", ["steps", "often", 5, True, {}, b"fixed", []])
def test_what_is_no_backoff_is_refused(spec):
    with pytest.raises(UsageError):
        Backoff.parse(spec, Backoff())


@pytest.mark.parametrize(
    "stored", [None, "x", "[]", 5, {"kind": 5}, {"steps": 5}, {"more": 1}, {"steps": ["a"]}]
)
def test_a_stored_backoff_that_cannot_be_read_gives_the_default(stored):
    assert Backoff.from_json(stored, Backoff(initial=9)) == Backoff(initial=9)
    with pytest.raises(UsageError):
        Backoff.from_json(stored)


class Response:
    def __init__(self, status):
        self.status_code = status


class HttpError(Exception):
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class ConnectTimeout(type("TimeoutException", (Exception,), {})):  # type: ignore[misc]
    """As httpx has it: no relative of the built-in TimeoutError."""


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(), ConnectionResetError(), BrokenPipeError(), socket.gaierror(),
        OSError(101, "unreachable"),
        ConnectTimeout(), HttpError(status_code=429), HttpError(status_code=503), HttpError(status=500),
        HttpError(code=502), HttpError(response=Response(504)), HttpError(status_code=408),
        urllib.error.URLError(ConnectionRefusedError()),
        ExceptionGroup("", [TimeoutError(), ConnectionError()]),
    ],
)  # fmt: skip
def test_time_outs_connection_errors_and_busy_servers_are_transient(error):
    assert classify(error, "transient") == "transient"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(), FileNotFoundError(), HttpError(status_code=404), HttpError(response=Response(400)),
        HttpError(code=True), HttpError(code="503"), HttpError(status=5), SystemExit(503),
        HttpError(status_code=404, response=Response(503)),
        ExceptionGroup("", [TimeoutError(), ValueError()]),
        Permanent(), PermissionError(13, "no"), urllib.error.HTTPError("", 404, "", {}, None),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_the_rest_is_permanent(error):
    assert classify(error, "transient") == "permanent"


@pytest.mark.parametrize(
    "error", [TypeError(), KeyError(), AttributeError(), ZeroDivisionError(), ImportError()]
)
def test_mistakes_in_the_program_are_bugs(error):
    assert classify(error, "transient") == "bug"


@pytest.mark.parametrize(
    "error", [ValueError(), TypeError(), SystemExit(0), KeyboardInterrupt(), MemoryError()]
)
def test_under_the_usual_policy_everything_is_tried_again(error):
    assert classify(error, "all") == "transient"


@pytest.mark.parametrize("policy", ["all", "transient", lambda error: "transient"])
def test_permanent_is_permanent_under_every_policy(policy):
    assert classify(Permanent("no such user"), policy) == "permanent"


@pytest.mark.parametrize("answer", ["transient", "permanent", "bug"])
def test_a_function_decides_for_itself(answer):
    assert classify(ValueError(), lambda error: answer) == answer


def _raising(error):
    raise SystemExit(1)


@pytest.mark.parametrize("policy", [_raising, lambda error: None, lambda error: "later", lambda error: True])
def test_a_policy_that_fails_leaves_the_error_transient_with_a_note(policy):
    error = ValueError("x")

    assert classify(error, policy) == "transient"
    assert "taken as transient" in error.__notes__[0]


def test_a_property_that_raises_does_not_disturb_the_classification():
    class OddError(Exception):
        @property
        def status_code(self):
            raise RuntimeError

    assert classify(OddError(), "transient") == "permanent"


@pytest.mark.parametrize("policy", ["often", None, 5, ""])
def test_what_is_no_policy_is_refused(policy):
    with pytest.raises(UsageError):
        check_policy(policy)
