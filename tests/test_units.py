from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import UsageError
from queuety.units import (
    instant,
    seconds,
    seconds_text,
    shown,
    size,
    size_text,
    switch,
    whole,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30), ("30s", 30), (" 30 s ", 30), ("5m", 300), ("2h", 7200), ("1d", 86_400), ("500ms", 0.5),
        ("1h30m", 5400), ("1.5h", 5400), ("0", 0), (2, 2), (0.25, 0.25), (timedelta(minutes=1), 60),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_every_usual_form(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        "", "abc", "-5", -5, "5x", "5 5", "1e3", "nan", "inf", float("nan"), float("inf"), 10**400,
        True, None, "١٢", "\uff15", "9" * 39, "9" * 5000, "1..5s", [], timedelta(seconds=-1), "\x00",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(UsageError):
        seconds(value)


def test_a_refused_duration_names_the_option_the_value_and_what_is_possible():
    with pytest.raises(UsageError, match=r"delay='soon' is not a duration .*5m"):
        seconds("soon", what="delay")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128MB", 128 << 20), ("1GB", 1 << 30), ("64k", 65_536), ("64KiB", 65_536), ("1.5kB", 1536),
        ("100", 100), ("100B", 100), ("1 gb", 1 << 30), (77, 77),
    ],
)  # fmt: skip
def test_a_size_is_read_in_every_usual_form(text, expected):
    assert size(text) == expected


def test_a_bare_size_counts_the_given_unit():
    assert size("128", unit=1 << 20) == size(128, unit=1 << 20) == size("128MB", unit=1 << 20)


@pytest.mark.parametrize("value", ["", "MB", "-1MB", "1XB", "1ib", "1 2", float("inf"), True, None, "9" * 40])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(UsageError):
        size(value)


@pytest.mark.parametrize("value", ["1.5", "two", "", 1.5, 1.0, True, None, "1_000", "0x10", "\uff11"])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(UsageError, match="whole number"):
        whole(value)


def test_a_whole_number_out_of_range_tells_the_range():
    with pytest.raises(UsageError, match="from 1 to 1000"):
        whole("1001", minimum=1, maximum=1000)


@pytest.mark.parametrize(("text", "expected"), [("on", True), ("OFF", False), ("yes", True), ("0", False)])
def test_a_switch_is_on_or_off(text, expected):
    assert switch(text) is expected


def test_a_switch_that_is_neither_is_refused():
    with pytest.raises(UsageError, match="neither on nor off"):
        switch("maybe")


def test_an_instant_is_returned_in_utc():
    assert instant("2030-01-31T09:00:00+09:00") == datetime(2030, 1, 31, tzinfo=UTC)
    assert instant("2030-01-31T09:00:00+09:00").tzinfo is UTC


def test_the_last_instant_of_year_9999_is_kept_exactly():
    assert instant("9999-12-31T23:59:59Z") == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("value", ["2030-01-31T09:00:00", "2030-01-31", datetime(2030, 1, 31)])
def test_a_naive_instant_is_refused_with_a_hint(value):
    with pytest.raises(UsageError, match=r"no offset from UTC .*\+09:00"):
        instant(value)


@pytest.mark.parametrize("value", ["", "tomorrow", "2030-02-30T00:00Z", 5, None, "9999-12-31T23:00:00-05:00"])
def test_what_is_no_instant_is_refused(value):
    with pytest.raises(UsageError):
        instant(value)


@given(st.datetimes(timezones=st.just(timezone(timedelta(hours=9)))))
def test_every_aware_instant_comes_back_equal(moment):
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:
        return

    assert instant(moment.isoformat()) == expected


@given(st.integers(0, 10**9).map(lambda n: n / 1000))
def test_a_written_duration_reads_back(value):
    assert seconds(seconds_text(value)) == pytest.approx(value)


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back(value):
    assert size(size_text(value)) == value


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_as_usage(text):
    for read in (seconds, size, whole, switch, instant):
        with contextlib.suppress(UsageError):
            read(text)


def test_a_value_is_shown_in_one_short_line():
    assert len(shown("x" * 10**6)) <= 80
    assert shown("a\n\x00b") == r"'a\n\x00b'"
