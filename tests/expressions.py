"""Strategies for Hypothesis: cron expressions, zones, and instants near their clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from queuety.errors import UsageError
from queuety.policy.cadence import check_cron

# A day on which each zone's clock was, or will be, put forward or back: two of each zone.
CHANGES = {
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "America/Caracas": ("2007-12-09", "2016-05-01"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "America/Los_Angeles": ("2026-03-08", "2026-11-01"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "America/Sao_Paulo": ("2017-10-15", "2018-02-18"),
    "America/St_Johns": ("2026-03-08", "2026-11-01"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Asia/Gaza": ("2023-04-29", "2023-10-28"),
    "Asia/Pyongyang": ("2015-08-15", "2018-05-05"),
    "Asia/Tehran": ("2022-03-22", "2022-09-22"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Australia/Sydney": ("2026-04-05", "2026-10-04"),
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "Europe/Dublin": ("2026-03-29", "2026-10-25"),
    "Europe/Istanbul": ("2015-11-08", "2016-03-27"),
    "Europe/London": ("2026-03-29", "2026-10-25"),
    "Pacific/Apia": ("2011-09-24", "2011-12-30"),
    "Pacific/Auckland": ("2026-04-05", "2026-09-27"),
    "Pacific/Chatham": ("2026-04-05", "2026-09-27"),
}
ZONES = [*sorted(CHANGES), "UTC", "Asia/Seoul", "Asia/Kathmandu"]


@st.composite
def items(draw: st.DrawFn, low: int, high: int) -> str:
    """One place of a list: a star, a number, a range, each of them with or without a step."""
    begin = draw(st.integers(low, high - 1))
    end = draw(st.integers(begin + 1, high))
    shape = draw(st.sampled_from(["*", "*/n", "a", "a", "a-b", "a-b/n", "a/n"]))
    size = {"*/n": high - low + 1, "a-b/n": end - begin + 1, "a/n": high - begin + 1}.get(shape, 1)
    step = draw(st.integers(1, size))
    return shape.replace("a", str(begin)).replace("b", str(end)).replace("n", str(step))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """A field of one to three places; a star stands alone, so that it says what it seems to say."""
    lists = st.lists(items(low, high).filter(lambda item: not item.startswith("*")), min_size=1, max_size=3)
    return st.one_of(items(low, high), lists.map(",".join))


def dates(*, nearest: bool) -> st.SearchStrategy[str]:
    numbers = st.integers(1, 31)
    special = st.sampled_from(["L", "LW", "1,L", "15,L"])
    kinds = [st.just("*"), st.just("*"), fields(1, 31), special]
    return st.one_of(*kinds, numbers.map("{}W".format)) if nearest else st.one_of(*kinds)


WEEKDAYS = st.one_of(
    st.just("*"),
    st.just("*"),
    fields(0, 6),
    st.sampled_from(["7", "MON-FRI", "5-7", "SUN,WED", "sat"]),
    st.tuples(st.integers(0, 7), st.integers(1, 5)).map(lambda nth: f"{nth[0]}#{nth[1]}"),
    st.integers(0, 7).map("{}L".format),
)
MONTHS = st.one_of(st.just("*"), st.just("*"), fields(1, 12), st.sampled_from(["JAN,JUL", "mar-may", "2"]))
# Clocks change at night.
HOURS = st.one_of(fields(0, 23), fields(0, 4), st.integers(0, 3).map(str))


@st.composite
def expressions(draw: st.DrawFn, *, nearest: bool = True) -> str:
    """An expression of five or six fields that we accept.

    nearest: with days such as 15W.
    """
    words = [draw(fields(0, 59)), draw(HOURS), draw(dates(nearest=nearest)), draw(MONTHS), draw(WEEKDAYS)]
    if draw(st.integers(0, 3)) == 0:
        words.insert(0, draw(fields(0, 59)))
    return " ".join(words)


def accepted(text: str) -> bool:
    """Whether the days of an expression ever come."""
    try:
        check_cron(text)
    except UsageError as refused:
        return not any(why in refused.message for why in ("never comes in", "is never weekday"))
    return True


@st.composite
def moments(draw: st.DrawFn, zone: str) -> datetime:
    """An instant within two days of a clock change of the zone, or in any year up to 2037."""
    changes = [datetime.fromisoformat(day).replace(tzinfo=UTC) for day in CHANGES.get(zone, ())]
    base = draw(
        st.sampled_from(
            [*changes, *changes, datetime(2026, 6, 1, tzinfo=UTC), datetime(2027, 12, 30, tzinfo=UTC)]
        )
    )
    return base + timedelta(seconds=draw(st.integers(-172_800, 172_800)))
