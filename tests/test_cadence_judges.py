"""Our ticks against those of other implementations: cronsim, croner (npm) and croniter.

Where a judge goes another way, the case is listed in docs/schedules.md, has a test of its own below that shows it, and
a predicate that leaves exactly it out of the comparison.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuety.policy.cadence import cadence
from queuety.policy.fields import parse_cron
from queuety.policy.zones import Segment, segment
from tests import ROOT
from tests.expressions import HOURS, ZONES, accepted, expressions, fields, moments

JUDGES = ROOT / "tests" / "judges"
TICKS = 5
HOUR = timedelta(hours=1)


def ours(text: str, zone: str, after: datetime, ticks: int = TICKS) -> list[datetime]:
    rule = cadence(cron=text, every_s=None, timezone=zone, anchor=after)
    found: list[datetime] = []
    while len(found) < ticks and (tick := rule.next(found[-1] if found else after)) is not None:
        found.append(tick)
    return found


def cronsim(text: str, zone: str, after: datetime, ticks: int = TICKS) -> list[datetime]:
    walk = CronSim(text, after.astimezone(ZoneInfo(zone)))
    return [next(walk).astimezone(UTC) for _ in range(ticks)]


class Croner:
    """A node process that answers one question a line."""

    def __init__(self, node: str) -> None:
        script = [node, str(JUDGES / "croner.mjs")]
        self.process = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __call__(self, text: str, zone: str, after: datetime, ticks: int = TICKS) -> list[datetime]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"cron": text, "zone": zone, "after": after.isoformat(), "ticks": ticks}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "refused" not in answer, answer["refused"]
        return [datetime.fromisoformat(tick) for tick in answer["ticks"]]

    def close(self) -> None:
        self.process.communicate()


def install(node: str | None, npm: str | None) -> str:
    """Install what package-lock.json names, once; returns why it cannot be had, or nothing."""
    if node is None or npm is None:
        return "there is no node with npm here"
    wanted = json.loads((JUDGES / "package-lock.json").read_text())["packages"]["node_modules/croner"][
        "version"
    ]
    there = JUDGES / "node_modules" / "croner" / "package.json"
    if there.exists() and json.loads(there.read_text())["version"] == wanted:
        return ""
    # Beside its place and then moved: of two test runs at once neither sees half of it.
    try:
        beside = Path(tempfile.mkdtemp(prefix="node_modules.", dir=JUDGES))
    except OSError as error:
        return f"croner cannot be stored: {error}"
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(JUDGES / name, beside)
        said = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"],
            cwd=beside,
            capture_output=True,
            text=True,
            timeout=100,
        )
        if said.returncode:
            return f"npm cannot install croner: {said.stderr.strip()[-300:]}"
        shutil.rmtree(JUDGES / "node_modules", ignore_errors=True)
        os.rename(beside / "node_modules", JUDGES / "node_modules")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"npm cannot install croner: {error}"
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return ""


@pytest.fixture(scope="module")
def croner() -> Iterator[Croner]:
    node = shutil.which("node")
    if reason := install(node, shutil.which("npm")):
        pytest.skip(reason)
    assert node is not None
    judge = Croner(node)
    yield judge
    judge.close()


# ── what the comparisons leave out ────────────────────────────────────────────────────────────────────────────


def changes(zone: str, first: datetime, last: datetime) -> Iterator[Segment]:
    """The stretches that begin within a day of first..last with a move of the clock."""
    low, high = (moment.astimezone(UTC).replace(tzinfo=None) for moment in (first, last))
    part = segment(zone, low - timedelta(days=1))
    while part.begin <= high + timedelta(days=1):
        if part.seen != part.first and part.begin >= low - timedelta(days=1):
            yield part
        if part.end.year > high.year + 1:
            return
        part = segment(zone, part.end)


def moved(part: Segment) -> tuple[datetime, datetime]:
    """The wall-clock times that were skipped or come twice: from the first, up to the second."""
    return min(part.seen, part.first), max(part.seen, part.first)


def asked_in_the_second_pass(zone: str, after: datetime) -> bool:
    part = segment(zone, after.astimezone(UTC).replace(tzinfo=None))
    return after.replace(tzinfo=None) + part.offset < part.seen


def moved_by_no_whole_hours(part: Segment) -> bool:
    low, high = moved(part)
    return (high - low) % HOUR != timedelta(0) or low.minute != 0


def over_midnight(part: Segment) -> bool:
    low, high = moved(part)
    return part.seen < part.first and (low.time() == datetime.min.time() or low.date() != high.date())


def several_times_of_the_day(text: str) -> bool:
    cron = parse_cron(text)
    return len(cron.hours) * len(cron.minutes) * len(cron.seconds) > 1


def named_in(text: str, part: Segment) -> bool:
    """Whether the expression names a time of what was skipped or comes twice."""
    low, high = moved(part)
    first = parse_cron(text).at_or_after(low)
    return first is not None and first < high


def whole_day_skipped(part: Segment) -> bool:
    low, high = moved(part)
    return high - low >= timedelta(days=1)


def narrowed_by_a_step(text: str) -> bool:
    """Whether one day field begins with a star and a step, and the other one is no star either."""
    date, _, weekday = text.split()[-3:]
    return "*" not in (date, weekday) and (date.startswith("*") or weekday.startswith("*"))


def steps_from_a_weekday(text: str) -> bool:
    """Whether the weekday has a place such as 3/4, which may or may not come to the second Sunday, 7."""
    return any(re.fullmatch(r"[0-9]/[0-9]", item) for item in text.split()[-1].split(","))


def cronsim_goes_another_way(text: str, zone: str, after: datetime, last: datetime) -> bool:
    if steps_from_a_weekday(text):
        return True
    if parse_cron(text).fixed:
        return len(text.split()) == 6 or asked_in_the_second_pass(zone, after)
    return any(moved_by_no_whole_hours(part) or over_midnight(part) for part in changes(zone, after, last))


def croner_goes_another_way(text: str, zone: str, after: datetime, last: datetime) -> bool:
    if narrowed_by_a_step(text):
        return True
    return parse_cron(text).fixed and any(
        named_in(text, part) and (several_times_of_the_day(text) or whole_day_skipped(part))
        for part in changes(zone, after, last)
    )


# ── comparisons ───────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def questions(draw: st.DrawFn, *, nearest: bool) -> tuple[str, str, datetime]:
    zone = draw(st.sampled_from(ZONES))
    text = draw(expressions(nearest=nearest))
    assume(accepted(text))
    return text, zone, draw(moments(zone)).replace(microsecond=0)


def compare(
    judge: Callable[[str, str, datetime], list[datetime]],
    goes_another_way: Callable[[str, str, datetime, datetime], bool],
    question: tuple[str, str, datetime],
) -> None:
    text, zone, after = question
    ticks = ours(text, zone, after)
    assume(not goes_another_way(text, zone, after, ticks[-1]))

    assert judge(text, zone, after) == ticks


@given(questions(nearest=False))
@settings(max_examples=300, deadline=None)
def test_cronsim_finds_the_same_ticks(question: tuple[str, str, datetime]):
    compare(cronsim, cronsim_goes_another_way, question)


@given(question=questions(nearest=True))
@settings(max_examples=300, deadline=None)
def test_croner_finds_the_same_ticks(croner: Croner, question: tuple[str, str, datetime]):
    compare(croner, croner_goes_another_way, question)


@st.composite
def plain_expressions(draw: st.DrawFn) -> str:
    """Without L, W and #; the week may go round."""
    weekday = st.one_of(st.just("*"), fields(0, 6), st.sampled_from(["FRI-MON", "6-1", "7", "SUN"]))
    words = [
        draw(fields(0, 59)),
        draw(HOURS),
        draw(st.one_of(st.just("*"), fields(1, 31))),
        "*",
        draw(weekday),
    ]
    return " ".join(words)


@given(plain_expressions(), moments("UTC"))
@settings(max_examples=200, deadline=None)
def test_croniter_finds_the_same_times_of_the_wall_clock(text: str, after: datetime):
    walk = croniter(text, after.replace(tzinfo=None), implement_cron_bug=True)

    assert [walk.get_next(datetime).replace(tzinfo=UTC) for _ in range(TICKS)] == ours(text, "UTC", after)


# ── where they differ ─────────────────────────────────────────────────────────────────────────────────────────
# Each row is a case of docs/schedules.md: what is asked, our first ticks, and those of the judge.

CRONSIM_DIFFERS = {
    "six fields are always a pattern, in the gap": (
        ("0 30 2 * * *", "America/New_York", "2026-03-08 06:00"),
        ["2026-03-08 07:00", "2026-03-09 06:30"],
        ["2026-03-09 06:30", "2026-03-10 06:30"],
    ),
    "six fields are always a pattern, in the repeated hour": (
        ("0 30 1 * * *", "America/New_York", "2026-11-01 05:00"),
        ["2026-11-01 05:30", "2026-11-02 06:30"],
        ["2026-11-01 05:30", "2026-11-01 06:30"],
    ),
    "asked in the second pass, goes back": (
        ("30 1 * * *", "America/New_York", "2026-11-01 06:15"),
        ["2026-11-02 06:30", "2026-11-03 06:30"],
        ["2026-11-01 05:30", "2026-11-02 06:30"],
    ),
    "a clock that moves half an hour: one is lost": (
        ("*/32 0 * * *", "Australia/Lord_Howe", "2026-10-03 14:30"),
        ["2026-10-04 13:00", "2026-10-04 13:32"],
        ["2026-10-04 13:32", "2026-10-05 13:00"],
    ),
    "a clock that moves within the hour: the same one again": (
        ("*/48 3 * * *", "Pacific/Chatham", "2026-04-04 10:50"),
        ["2026-04-04 13:15", "2026-04-04 14:15"],
        ["2026-04-04 13:15", "2026-04-04 13:15"],
    ),
    "a midnight that is skipped: the first hour is lost": (
        ("*/30 1-3 * * 0", "America/Havana", "2026-03-07 12:00"),
        ["2026-03-08 05:00", "2026-03-08 05:30"],
        ["2026-03-08 06:00", "2026-03-08 06:30"],
    ),
    "a midnight that is skipped: an hour that is not asked for": (
        ("*/30 */3 24 4 *", "Africa/Cairo", "2026-04-23 01:39"),
        ["2026-04-24 00:00", "2026-04-24 00:30"],
        ["2026-04-23 22:00", "2026-04-24 00:00"],
    ),
    "a weekday with a step comes to the second Sunday": (
        ("0 0 * * 3/4", "UTC", "2026-07-28 00:00"),
        ["2026-07-29 00:00", "2026-08-05 00:00"],
        ["2026-07-29 00:00", "2026-08-02 00:00"],
    ),
}
CRONER_DIFFERS = {
    "a star with a step adds days": (
        ("0 0 */2 * 1", "UTC", "2026-01-01 00:00"),
        ["2026-01-05 00:00", "2026-01-19 00:00"],
        ["2026-01-03 00:00", "2026-01-05 00:00"],
    ),
    "several times of the day are a pattern, in the gap": (
        ("30 2,5 * * *", "America/New_York", "2026-03-08 06:30"),
        ["2026-03-08 07:00", "2026-03-08 09:30"],
        ["2026-03-08 09:30", "2026-03-09 06:30"],
    ),
    "several times of the day are a pattern, in the repeated hour": (
        ("30 1,5 * * *", "America/New_York", "2026-11-01 05:00"),
        ["2026-11-01 05:30", "2026-11-01 10:30"],
        ["2026-11-01 05:30", "2026-11-01 06:30"],
    ),
    "a fixed time on a day that was left out: none": (
        ("0 9 * * *", "Pacific/Apia", "2011-12-29 20:00"),
        ["2011-12-30 10:00", "2011-12-30 19:00"],
        ["2011-12-30 19:00", "2011-12-31 19:00"],
    ),
}
CRONITER_DIFFERS = {
    "a range of one number is the whole field": (
        ("0 9 12-12 * *", "UTC", "2026-07-31 00:00"),
        ["2026-08-12 09:00", "2026-09-12 09:00"],
        ["2026-07-31 09:00", "2026-08-01 09:00"],
    ),
    "W drops the weekday": (
        ("0 9 15W * 1", "UTC", "2026-07-31 00:00"),
        ["2026-08-03 09:00", "2026-08-10 09:00"],
        ["2026-08-14 09:00", "2026-09-15 09:00"],
    ),
    "31W in a month of 30 days": (
        ("0 9 31W 4,5 *", "UTC", "2026-03-31 00:00"),
        ["2026-05-29 09:00", "2027-05-31 09:00"],
        ["2026-04-30 09:00", "2026-05-29 09:00"],
    ),
    "an nth weekday narrows the date down": (
        ("0 0 1 * 3#3", "UTC", "2026-07-31 00:00"),
        ["2026-08-01 00:00", "2026-08-19 00:00"],
        [],
    ),
    "a week that goes round loses its step": (
        ("0 0 * * SAT-TUE/2", "UTC", "2026-07-31 00:00"),
        ["2026-08-01 00:00", "2026-08-03 00:00"],
        ["2026-08-01 00:00", "2026-08-04 00:00"],
    ),
}

Row = tuple[tuple[str, str, str], list[str], list[str]]


def by_croniter(text: str, zone: str, after: datetime, ticks: int) -> list[datetime]:
    assert zone == "UTC"
    walk = croniter(text, after.replace(tzinfo=None), implement_cron_bug=True)
    try:
        return [walk.get_next(datetime).replace(tzinfo=UTC) for _ in range(ticks)]
    except CroniterBadDateError:
        return []


def assert_differs(judge: Callable[[str, str, datetime, int], list[datetime]], row: Row) -> None:
    (text, zone, after), we, they = row
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)

    assert [f"{tick:%Y-%m-%d %H:%M}" for tick in ours(text, zone, moment, 2)] == we
    assert [f"{tick:%Y-%m-%d %H:%M}" for tick in judge(text, zone, moment, 2)] == they


@pytest.mark.parametrize("row", CRONSIM_DIFFERS.values(), ids=CRONSIM_DIFFERS)
def test_cronsim_differs_where_the_documentation_says(row: Row):
    assert_differs(cronsim, row)


@pytest.mark.parametrize("row", CRONER_DIFFERS.values(), ids=CRONER_DIFFERS)
def test_croner_differs_where_the_documentation_says(croner: Croner, row: Row):
    assert_differs(croner, row)


@pytest.mark.parametrize("row", CRONITER_DIFFERS.values(), ids=CRONITER_DIFFERS)
def test_croniter_differs_where_the_documentation_says(row: Row):
    assert_differs(by_croniter, row)
