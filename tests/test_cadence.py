"""Cadences: what may be written, and at which instants a schedule ticks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from queuety.errors import UsageError
from queuety.policy.cadence import Cadence, cadence, check_cron, check_every, check_zone
from queuety.policy.cron import Cron

START = datetime(2026, 1, 1, tzinfo=UTC)


def cron(text: str, zone: str = "UTC", **more: datetime) -> Cadence:
    return cadence(cron=text, every_s=None, timezone=zone, anchor=START, **more)


def every(seconds: float, **more: datetime) -> Cadence:
    return cadence(cron=None, every_s=seconds, timezone="UTC", anchor=more.pop("anchor", START), **more)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def preview(rule: Cadence, after: datetime | str, ticks: int) -> list[str]:
    """The next ticks in UTC, as text up to the minute, or to the second where it is not 0."""
    found = []
    moment: datetime | None = utc(after) if isinstance(after, str) else after
    for _ in range(ticks):
        assert moment is not None
        moment = rule.next(moment)
        found.append("never" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}".removesuffix(":00"))
        if moment is None:
            break
    return found


# ── what may be written ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("0 3 * * *", "0 3 * * *"),
        ("  */10\t9-17  * jan-mar  mon,Wed ", "*/10 9-17 * JAN-MAR MON,WED"),
        ("0 0 l * *", "0 0 L * *"),
        ("*/5 * * * * *", "*/5 * * * * *"),
        ("@Daily", "@daily"),
        (" @hourly ", "@hourly"),
    ],
)
def test_an_expression_is_returned_in_its_plain_form(text: str, plain: str):
    assert check_cron(text) == plain


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("60 * * * *", "minute '60'"),
        ("60 * * * * *", "second '60'"),
        ("* 24 * * *", "hour '24'"),
        ("0 0 0 1 0", "day-of-month '0'"),
        ("0 0 32 * *", "day-of-month '32'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * 0 *", "month '0'"),
        ("* * * * 8", "weekday '8'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("*/61 * * * *", "minute '*/61'"),
        ("10-20/30 * * * *", "minute '10-20/30'"),
        ("*/x * * * *", "minute '*/X'"),
        ("5-1 * * * *", "minute '5-1'"),
        ("0 22-2 * * *", "hour '22-2'"),
        ("0 0 * NOV-FEB *", "month 'NOV-FEB'"),
        ("1-2-3 * * * *", "minute '1-2-3'"),
        ("+5 * * * *", "minute '+5'"),
        ("-5 * * * *", "minute '-5'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("005 * * * *", "minute '005'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("1, * * * *", "minute '1,'"),
        ("*5 * * * *", "minute '*5'"),
        ("\uff15 * * * *", "minute '\uff15'"),
        ("\uff0a * * * *", "minute '\uff0a'"),
        ("0 0 * * \u017fun", "weekday '\u017fun'"),
        ("H * * * *", "minute 'H'"),
        ("0~30 * * * *", "minute '0~30'"),
        ("0 0 ? * *", "day-of-month '?'"),
        ("0 0 * * ?", "weekday '?'"),
        ("0 0 L-3 * *", "day-of-month 'L-3'"),
        ("0 0 32W * *", "day-of-month '32W'"),
        ("0 0 W * *", "day-of-month 'W'"),
        ("0 0 1-5W * *", "day-of-month '1-5W'"),
        ("0 L * * *", "hour 'L'"),
        ("0 0 * L *", "month 'L'"),
        ("0 0 * * L", "weekday 'L'"),
        ("0 0 * * L5", "weekday 'L5'"),
        ("0 0 * * 5W", "weekday '5W'"),
        ("0 0 * * 5#6", "weekday '5#6'"),
        ("0 0 * * 5#0", "weekday '5#0'"),
        ("0 0 * * 5#L", "weekday '5#L'"),
        ("0 0 * * 8#1", "weekday '8#1'"),
        ("0 0 * * 1-5#2", "weekday '1-5#2'"),
        ("0 0 15#1 * *", "day-of-month '15#1'"),
        ("0 0 * * MONDAY", "weekday 'MONDAY'"),
        ("0 0 * MON *", "month 'MON'"),
        ("0 0 JAN * *", "day-of-month 'JAN'"),
        ("," * 10_000 + " * * * *", "minute ',,,"),
        ("* * * * " + "1," * 5_000, "weekday '1,1,"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_field(text: str, names: str):
    with pytest.raises(UsageError) as refused:
        check_cron(text)

    assert names in refused.value.message
    assert refused.value.hint
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 fields, not 5 or 6"),
        ("*", "1 field, not"),
        ("* * * *", "4 fields, not"),
        ("* * * * * * *", "7 fields, not"),
        ("* * * * * * * *", "8 fields, not"),
        ("," * 10_000, "1 field, not"),
        ("@every 5m", "'@every 5m' is not supported"),
        ("@reboot", "'@reboot' is not supported"),
        ("@daily 5", "'@daily 5' is not supported"),
    ],
)
def test_a_wrong_number_of_fields_or_an_unknown_alias_is_refused(text: str, says: str):
    with pytest.raises(UsageError, match=says):
        check_cron(text)


@pytest.mark.parametrize(
    "text",
    [
        "," * 10_000,
        "," * 10_000 + " * * * *",
        "9" * 10_000 + " * * * *",
        "* " * 5_000,
        "*/1" * 3_000 + " * * * *",
    ],
)
def test_nonsense_of_any_length_is_refused_quickly(text: str):
    began = time.process_time()

    with pytest.raises(UsageError):
        check_cron(text)

    assert time.process_time() - began < 1


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"] * 5])
def test_an_expression_is_text(value: object):
    with pytest.raises(UsageError, match="is not text"):
        check_cron(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "day", "month"),
    [
        ("0 0 30 2 *", "30", "2"),
        ("0 0 31 2 *", "31", "2"),
        ("0 0 31 4,6,9,11 *", "31", "4,6,9,11"),
        ("0 0 30-31 FEB *", "30-31", "FEB"),
        ("0 0 30 2 MON", "30", "2"),
        ("0 0 31W 6 *", "31W", "6"),
    ],
)
def test_a_date_that_never_comes_is_refused_by_day_and_month(text: str, day: str, month: str):
    with pytest.raises(UsageError, match=f"day-of-month {day} never comes in month {month}"):
        check_cron(text)


def test_a_day_that_never_is_that_weekday_is_refused():
    with pytest.raises(UsageError, match=r"day-of-month \*/31 is never weekday 5#3"):
        check_cron("0 0 */31 * 5#3")


@pytest.mark.parametrize(
    "text", ["0 0 29 2 *", "0 0 30,29 2 *", "0 0 31 2,3 *", "0 0 29 2 */7", "0 0 * 2 5#5"]
)
def test_a_rare_date_is_accepted(text: str):
    assert check_cron(text) == text


# ── zones and intervals as they are written ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["UTC", "Asia/Seoul", "America/Argentina/Buenos_Aires", "Etc/GMT-3"])
def test_a_zone_of_the_tz_database_is_accepted(name: str):
    assert check_zone(name) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("KST", "Asia/Seoul"),
        ("asia/seoul", "Asia/Seoul"),
        (" Asia/Seoul", "Asia/Seoul"),
        ("Europe/Budapesst", "Europe/Budapest"),
        ("seoul", "Asia/Seoul"),
        ("UTC+3", "Etc/GMT-3"),
        ("-05:00", "Etc/GMT\\+5"),
        ("", "such as"),
        ("localtime", "such as"),
        ("../etc/passwd", "such as"),
        ("Asia/Seoul\0", "Asia/Seoul"),
        ("x" * 10_000, "such as"),
        (None, "such as"),
        (3, "such as"),
    ],
)
def test_a_zone_that_is_not_exactly_known_is_refused_with_a_suggestion(name: str, hint: str):
    with pytest.raises(UsageError, match=rf"(?s)is not the name of a time zone.*{hint}"):
        check_zone(name)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        ("90", 90),
        ("30 minutes", 1800),
        ("1 minute", 60),
        ("1h30m", 5400),
        ("1 hour 30 minutes", 5400),
        ("2 Days", 172_800),
        ("10 sec", 10),
        (timedelta(hours=6), 21_600),
        (1, 1),
        ("3652.5 d", 315_576_000),
    ],
)
def test_an_interval_is_read_as_people_write_it(value: object, seconds: float):
    assert check_every(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(0, -5, 0.000001, 0.999, 1e12, float("nan"), float("inf"), True, None, timedelta(days=4000)),
        *("", "5 parsecs", "m", "1 month", "-1h", "\uff15m", "1 hour and 5 minutes", "5m" * 5_000),
    ],
)
def test_an_interval_that_cannot_be_meant_is_refused(value: object):
    with pytest.raises(UsageError, match=r"every=.*is not an interval"):
        check_every(value)


def test_a_schedule_has_an_expression_or_an_interval():
    for both in ({"cron": None, "every_s": None}, {"cron": "@daily", "every_s": 60.0}):
        with pytest.raises(UsageError, match="either a cron expression or an interval"):
            cadence(**both, timezone="UTC", anchor=START)


def test_an_end_that_is_not_after_the_start_is_refused():
    with pytest.raises(UsageError, match="is not after starts_at"):
        cron("@daily", starts_at=START, ends_at=START)


@pytest.mark.parametrize("name", ["anchor", "starts_at", "ends_at"])
def test_an_instant_without_an_offset_is_refused(name: str):
    bounds = {"anchor": START, name: datetime(2026, 1, 1)}

    with pytest.raises(UsageError, match=f"{name}=.*has no offset"):
        cadence(cron="@daily", every_s=None, timezone="UTC", **bounds)


# ── which days match ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "after", "ticks"),
    [
        ("0 0 L * *", "2026-07-31", ["2026-08-31 00:00", "2026-09-30 00:00", "2026-10-31 00:00"]),
        ("0 0 L 2 *", "2026-07-31", ["2027-02-28 00:00", "2028-02-29 00:00"]),
        ("0 0 L,15 * *", "2026-07-31", ["2026-08-15 00:00", "2026-08-31 00:00"]),
        ("0 0 LW * *", "2026-07-31", ["2026-08-31 00:00", "2026-09-30 00:00", "2026-10-30 00:00"]),
        ("0 0 * * 5#3", "2026-07-31", ["2026-08-21 00:00", "2026-09-18 00:00"]),
        ("0 0 * * FRI#5", "2026-07-31", ["2026-10-30 00:00", "2027-01-29 00:00"]),
        ("0 0 * * 7#1", "2026-07-31", ["2026-08-02 00:00", "2026-09-06 00:00"]),
        ("0 0 * * 5#3,1", "2026-08-16", ["2026-08-17 00:00", "2026-08-21 00:00", "2026-08-24 00:00"]),
        ("0 0 * * 5L", "2026-07-31", ["2026-08-28 00:00", "2026-09-25 00:00"]),
        ("0 0 * * fril", "2026-07-31", ["2026-08-28 00:00", "2026-09-25 00:00"]),
        (
            "0 9 15W * *",
            "2026-07-31",
            ["2026-08-14 09:00", "2026-09-15 09:00", "2026-10-15 09:00", "2026-11-16 09:00"],
        ),
        ("0 9 1W * *", "2026-07-31", ["2026-08-03 09:00", "2026-09-01 09:00"]),
        ("0 9 31W * *", "2026-07-31 12:00", ["2026-08-31 09:00", "2026-10-30 09:00", "2026-12-31 09:00"]),
        ("0 9 1W,15W * *", "2026-07-31 12:00", ["2026-08-03 09:00", "2026-08-14 09:00"]),
        (
            "0 0 * * FRI-MON",
            "2026-07-28",
            ["2026-07-31 00:00"] + [f"2026-08-0{day} 00:00" for day in (1, 2, 3, 7)],
        ),
        ("0 0 * * FRI-MON/2", "2026-07-28", ["2026-07-31 00:00", "2026-08-02 00:00", "2026-08-07 00:00"]),
        ("0 0 * * 7", "2026-07-28", ["2026-08-02 00:00", "2026-08-09 00:00"]),
        ("0 0 * * 5-7", "2026-07-28", [f"2026-{day} 00:00" for day in ("07-31", "08-01", "08-02", "08-07")]),
        ("0 0 * * 7-2", "2026-07-28 01:00", [f"2026-08-0{day} 00:00" for day in (2, 3, 4, 9)]),
        ("5/20 3 * * *", "2026-07-28", [f"2026-07-28 03:{minute}" for minute in ("05", "25", "45")]),
        ("0 0 * * 3/3", "2026-07-28", ["2026-07-29 00:00", "2026-08-01 00:00", "2026-08-05 00:00"]),
        ("0 0 * * 7/3", "2026-07-28", ["2026-07-29 00:00", "2026-08-01 00:00", "2026-08-02 00:00"]),
        ("12-12 3-3/1 * * *", "2026-07-28", ["2026-07-28 03:12", "2026-07-29 03:12"]),
    ],
)
def test_every_sign_has_its_meaning(text: str, after: str, ticks: list[str]):
    assert preview(cron(text), after, len(ticks)) == ticks


def test_either_day_field_matches_unless_one_begins_with_a_star():
    february = ["2027-02-01 00:00", "2027-02-08 00:00", "2027-02-15 00:00", "2027-02-22 00:00"]
    leap = [f"2028-02-{day} 00:00" for day in ("07", "14", "21", "28", "29")]
    assert preview(cron("0 0 29 2 1"), "2027-01-01", 9) == february + leap

    mondays_of_odd_days = ["2026-01-05 00:00", "2026-01-19 00:00", "2026-02-09 00:00", "2026-02-23 00:00"]
    assert preview(cron("0 0 */2 * 1"), START, 4) == mondays_of_odd_days
    assert preview(cron("0 0 1 * */2"), START, 2) == ["2026-02-01 00:00", "2026-03-01 00:00"]


@pytest.mark.parametrize(
    ("after", "then"),
    [
        ("2026-01-01", "2028-02-29 09:00"),
        ("2028-02-29 08:59", "2028-02-29 09:00"),
        ("2028-02-29 09:00", "2032-02-29 09:00"),
        ("2028-02-29 09:01", "2032-02-29 09:00"),
        ("2096-03-01", "2104-02-29 09:00"),
    ],
)
def test_the_29th_of_february_comes_in_leap_years_only(after: str, then: str):
    assert preview(cron("0 9 29 2 *"), after, 1) == [then]


def test_a_29th_of_february_on_a_sunday_is_found_over_40_years():
    assert preview(cron("0 0 29 2 */7"), "2088-03-01", 1) == ["2128-02-29 00:00"]


@pytest.mark.parametrize(
    ("alias", "ticks"),
    [
        ("@hourly", ["2026-03-05 11:00", "2026-03-05 12:00"]),
        ("@daily", ["2026-03-06 00:00", "2026-03-07 00:00"]),
        ("@midnight", ["2026-03-06 00:00", "2026-03-07 00:00"]),
        ("@weekly", ["2026-03-08 00:00", "2026-03-15 00:00"]),
        ("@monthly", ["2026-04-01 00:00", "2026-05-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00"]),
        ("@annually", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ],
)
def test_an_alias_stands_for_five_fields(alias: str, ticks: list[str]):
    assert preview(cron(alias), "2026-03-05 10:30", 2) == ticks


def test_six_fields_begin_with_the_second():
    rule = cron("*/20 59 23 * * *")

    ticks = ["2026-01-01 23:59", "2026-01-01 23:59:20", "2026-01-01 23:59:40", "2026-01-02 23:59"]
    assert preview(rule, START, 4) == ticks


# ── clock changes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fixed_time_in_the_gap_ticks_once_right_after_it():
    rule = cron("30 2 * * *", "America/New_York")

    ticks = ["2026-03-08 07:00", "2026-03-09 06:30", "2026-03-10 06:30"]
    assert preview(rule, "2026-03-08 06:30", 3) == ticks


def test_many_fixed_times_in_one_gap_are_one_tick():
    rule = cron("0,15,30 2,3 * * *", "America/New_York")

    assert preview(rule, "2026-03-08 06:59", 3) == [
        "2026-03-08 07:00",
        "2026-03-08 07:15",
        "2026-03-08 07:30",
    ]


def test_a_fixed_time_in_the_repeated_hour_ticks_the_first_time_only():
    rule = cron("30 1 * * *", "America/New_York")

    assert preview(rule, "2026-11-01 04:00", 2) == ["2026-11-01 05:30", "2026-11-02 06:30"]
    assert preview(rule, "2026-11-01 05:45", 1) == ["2026-11-02 06:30"]


def test_a_pattern_follows_real_time():
    rule = cron("*/30 * * * *", "America/New_York")

    spring = ["2026-03-08 06:30", "2026-03-08 07:00", "2026-03-08 07:30"]
    assert preview(rule, "2026-03-08 06:00", 3) == spring
    autumn = [f"2026-11-01 0{hour}:{minute}" for hour in (5, 6) for minute in ("00", "30")]
    assert preview(rule, "2026-11-01 04:30", 4) == autumn


def test_a_pattern_within_the_gap_is_left_out():
    rule = cron("*/30 2 * * *", "America/New_York")

    assert preview(rule, "2026-03-07 08:00", 1) == ["2026-03-09 06:00"]


def test_seconds_do_not_make_a_pattern():
    rule = cron("*/20 30 1 * * *", "America/New_York")

    ticks = [f"2026-11-01 05:30{second}" for second in ("", ":20", ":40")]
    assert preview(rule, "2026-11-01 04:30", 4) == [*ticks, "2026-11-02 06:30"]


def test_a_time_after_the_change_is_not_moved():
    rule = cron("4 16 * * *", "America/New_York")

    ticks = ["2026-03-07 21:04", "2026-03-08 20:04", "2026-03-09 20:04"]
    assert preview(rule, "2026-03-07", 3) == ticks


def test_half_an_hour_of_lord_howe_is_skipped_and_repeated():
    gap = cron("15 2 * * *", "Australia/Lord_Howe")  # 2026-10-04: 02:00 becomes 02:30
    assert preview(gap, "2026-10-03 15:00", 2) == ["2026-10-03 15:30", "2026-10-04 15:15"]

    again = cron("45 1 * * *", "Australia/Lord_Howe")  # 2026-04-05: 02:00 becomes 01:30
    assert preview(again, "2026-04-04 14:00", 2) == ["2026-04-04 14:45", "2026-04-05 15:15"]
    pattern = cron("*/15 1 * * *", "Australia/Lord_Howe")
    assert len(pattern.latest(utc("2026-04-04 13:00"), utc("2026-04-04 16:00"), 10)) == 6


def test_the_day_that_apia_left_out_ticks_at_its_end():
    rule = cron("0 9 * * *", "Pacific/Apia")  # 2011-12-29 24:00 became 2011-12-31 00:00

    assert preview(rule, "2011-12-29 18:59", 3) == [
        "2011-12-29 19:00",
        "2011-12-30 10:00",
        "2011-12-30 19:00",
    ]
    assert preview(cron("0 9 30 12 *", "Pacific/Apia"), "2011-12-01", 1) == ["2011-12-30 10:00"]


def test_the_day_that_alaska_lived_twice_ticks_once():
    fixed, pattern = cron("0 9 * * *", "America/Juneau"), cron("0 */9 * * *", "America/Juneau")

    first, last = utc("1867-10-16"), utc("1867-10-21")

    assert [f"{tick:%d %H}" for tick in fixed.latest(first, last, 9)] == ["16 17", "17 17", "18 17", "20 17"]
    assert pattern.count(first, last, 99) > 3 * fixed.count(first, last, 99)


@pytest.mark.parametrize(
    ("zone", "midnight"),
    [
        ("America/Havana", "2026-03-08 05:00"),
        ("Asia/Beirut", "2026-03-28 22:00"),
        ("America/Santiago", "2026-09-06 04:00"),
        ("Africa/Cairo", "2026-04-23 22:00"),
    ],
)
def test_a_midnight_that_is_skipped_ticks_at_one(zone: str, midnight: str):
    rule = cron("@daily", zone)

    before = utc(midnight) - timedelta(minutes=1)

    assert preview(rule, before, 2) == [midnight, f"{utc(midnight) + timedelta(hours=23):%Y-%m-%d %H:%M}"]


def test_casablanca_puts_its_clock_back_in_ramadan():
    rule = cron(
        "30 2 * * *", "Africa/Casablanca"
    )  # 2026-02-15: 03:00 becomes 02:00; 2026-03-22: 02:00 becomes 03:00

    assert preview(rule, "2026-02-15 00:00", 2) == ["2026-02-15 01:30", "2026-02-16 02:30"]
    assert preview(rule, "2026-03-21 03:00", 2) == ["2026-03-22 02:00", "2026-03-23 01:30"]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The wall-clock times from which an expression was asked for a match."""
    asked: list[datetime] = []

    def listening(search: Callable[[Cron, datetime], datetime | None]):
        def look(self: Cron, wall: datetime) -> datetime | None:
            asked.append(wall)
            return search(self, wall)

        return look

    monkeypatch.setattr(Cron, "at_or_after", listening(Cron.at_or_after))
    monkeypatch.setattr(Cron, "at_or_before", listening(Cron.at_or_before))
    return asked


@pytest.mark.parametrize("text", ["* 30 1 * * *", "* * 1 * * *", "* 0-59 1 * * *"])
def test_the_repeated_hour_is_not_walked_second_by_second(text: str, looks: list[datetime]):
    rule = cron(text, "America/New_York")
    looks.clear()

    assert rule.next(utc("2026-11-01 05:59:59")) is not None
    assert rule.latest(utc("2026-01-01"), utc("2026-11-01 06:59:59"), 1)

    assert len(looks) < 20


# ── start and end ─────────────────────────────────────────────────────────────────────────────────────────────


def test_ticks_lie_from_the_start_and_before_the_end():
    rule = cron("0 * * * *", starts_at=utc("2026-05-01 10:00"), ends_at=utc("2026-05-01 12:00"))

    assert preview(rule, "2026-01-01", 3) == ["2026-05-01 10:00", "2026-05-01 11:00", "never"]
    assert rule.latest(utc("2020-01-01"), utc("2030-01-01"), 5) == [
        utc("2026-05-01 10:00"),
        utc("2026-05-01 11:00"),
    ]
    assert rule.count(utc("2020-01-01"), utc("2030-01-01"), 5) == 2


def test_an_interval_ticks_from_its_anchor_in_real_time():
    rule = every(5400, anchor=utc("2026-03-08 06:10:30"))

    assert preview(rule, "2020-01-01", 2) == ["2026-03-08 06:10:30", "2026-03-08 07:40:30"]
    assert rule.next(utc("2026-03-08 06:10:30")) == utc("2026-03-08 07:40:30")
    assert rule.next(utc("2026-03-08 06:10:30") - timedelta(microseconds=1)) == utc("2026-03-08 06:10:30")


def test_an_interval_begins_with_its_start():
    rule = every(60, anchor=utc("2026-01-01"), starts_at=utc("2026-02-01 00:00:07"))

    assert preview(rule, "2025-01-01", 2) == ["2026-02-01 00:00:07", "2026-02-01 00:01:07"]


def test_an_interval_does_not_drift_over_a_century():
    rule = every(1.1, anchor=START)
    far = START + timedelta(seconds=1.1) * 2_868_800_000

    assert rule.next(far) == far + timedelta(seconds=1.1)
    assert rule.latest(START, far, 1) == [far]
    assert rule.count(START, far, 1000) == 1000


def test_what_millions_of_ticks_lie_between_is_found_at_once(looks: list[datetime]):
    rule = cron("* * * * * *", "Europe/Berlin")
    looks.clear()

    ticks = rule.latest(utc("2000-01-01"), utc("2026-10-25 01:00"), 3)

    assert ticks == [utc("2026-10-25 00:59:58"), utc("2026-10-25 00:59:59"), utc("2026-10-25 01:00")]
    assert len(looks) < 20


@pytest.mark.parametrize("rule", [cron("0 3 * * *", "Asia/Seoul"), every(60)], ids=["cron", "interval"])
@pytest.mark.parametrize(
    "edge", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)], ids=["first", "last"]
)
def test_the_ends_of_the_calendar_are_no_error(rule: Cadence, edge: datetime):
    assert rule.latest(edge, edge, 3) == []
    assert rule.count(edge, edge, 3) == 0
    assert (rule.next(edge) is None) == (edge.year == 9999)
