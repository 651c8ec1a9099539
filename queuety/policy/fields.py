"""Cron expressions as they are written, checked field by field.

Every sign is either understood or refused by the name of its field; nothing is dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from queuety.errors import UsageError
from queuety.policy.cron import Cron, Days
from queuety.units import shown

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = {name: number for number, name in enumerate(_MONTHS, start=1)}
WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAYS)}
LONGEST_MONTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# A field that lists all 60 minutes is 170 characters long.
LONGEST_FIELD = 256

FIELDS_ACCEPTED = "give minute hour day-of-month month weekday, six with the second first, or @daily"

_NUMBER = re.compile(r"[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)
    signs: str = "numbers, a-b, */n, a-b/n and lists with ,"


SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day-of-month", 1, 31, signs="1-31, a-b, */n, L (the last day), LW, 15W and lists with ,")
MONTH = Field("month", 1, 12, MONTHS, signs="1-12, JAN-DEC, a-b, */n and lists with ,")
WEEKDAY = Field(
    "weekday",
    0,
    7,
    WEEKDAYS,
    signs="0-7 (0 and 7 are Sunday), SUN-SAT, a-b, */n, 5#3 (the third Friday), 5L (the last one)",
)
FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


def check_cron(text: str) -> str:
    """Return the expression in its plain form: single blanks, names in capitals, an alias in small letters.

    Raises UsageError that names the field and what it may hold.
    """
    return _parse(text)[0]


def parse_cron(text: str) -> Cron:
    """Check an expression and make it ready to be asked."""
    return _parse(text)[1]


def _parse(text: str) -> tuple[str, Cron]:
    if not isinstance(text, str):
        raise UsageError(f"cron {shown(text)} is not text", FIELDS_ACCEPTED)
    # Not upper() for all: it would turn signs from elsewhere into letters of ours.
    words = [word.upper() if word.isascii() else word for word in text.replace("\t", " ").split(" ") if word]
    if words and words[0].startswith("@"):
        alias = " ".join(words).lower()
        if alias not in ALIASES:
            raise UsageError(f"cron {shown(text)} is not supported", _instead_of(alias))
        return alias, _parse(ALIASES[alias])[1]
    if len(words) not in (5, 6):
        raise UsageError(
            f"cron {shown(text)} has {len(words)} {'field' if len(words) == 1 else 'fields'}, not 5 or 6",
            FIELDS_ACCEPTED,
        )
    cron = _Reader(text, words if len(words) == 6 else ["0", *words]).cron()
    return " ".join(words), cron


def _instead_of(alias: str) -> str:
    if alias.startswith("@every"):
        return "give the interval as every=, such as every='5 minutes'"
    return f"give five or six fields, or one of {', '.join(sorted(ALIASES))}"


class _Reader:
    """Reads six fields, and says in every refusal which expression and field it is about."""

    def __init__(self, text: str, words: list[str]) -> None:
        self.text = text
        self.words = words

    def cron(self) -> Cron:
        sets = [self._items(what, word) for what, word in zip(FIELDS, self.words, strict=True)]
        # As Debian's cron: a day field that begins with `*` narrows the other one down instead of adding to it.
        days = Days(both=self.words[3].startswith("*") or self.words[5].startswith("*"))
        _sort_dates(sets[3], days)
        _sort_weekdays(sets[5], days)
        seconds, minutes, hours, months = (
            tuple(sorted(value for value in found if isinstance(value, int)))
            for found in (sets[0], sets[1], sets[2], sets[4])
        )
        fixed = not self.words[1].startswith("*") and not self.words[2].startswith("*")
        cron = Cron(seconds, minutes, hours, days, months, fixed)
        self._check_dates(cron)
        return cron

    def _items(self, what: Field, word: str) -> set[Item]:
        if len(word) > LONGEST_FIELD:
            raise self._refused(
                what, word, f"is {len(word)} characters long", f"at most {LONGEST_FIELD} make sense"
            )
        found: set[Item] = set()
        for item in word.split(","):
            found |= self._item(what, item, word)
        return found

    def _item(self, what: Field, item: str, word: str) -> set[Item]:
        if not item:
            raise self._refused(what, word, "has an empty place in its list")
        special = self._special(what, item)
        if special is not None:
            return {special}
        span, slash, by = item.partition("/")
        numbers = self._span(what, span, item, open_end=bool(slash))
        if slash:
            step = self._step(what, by, item, len(numbers))
            numbers = numbers[::step]
        return {number % 7 for number in numbers} if what is WEEKDAY else set(numbers)

    def _special(self, what: Field, item: str) -> Item | None:
        """L, LW, 15W, 5#3 and 5L where they may stand."""
        if what is DAY:
            if item in ("L", "LW"):
                return (item, 0)
            if item.endswith("W"):
                return ("W", self._number(what, item[:-1], item))
        if what is WEEKDAY:
            weekday, sign, nth = item.partition("#")
            if sign:
                if nth not in ("1", "2", "3", "4", "5"):
                    raise self._refused(
                        what, item, "is not understood", "after # stands 1 to 5; the last one is 5L"
                    )
                return (f"#{nth}", self._number(what, weekday, item) % 7)
            if len(item) > 1 and item.endswith("L"):
                return ("L", self._number(what, item[:-1], item) % 7)
            if len(item) > 1 and item.startswith("L") and _NUMBER.fullmatch(item[1:]):
                raise self._refused(
                    what, item, "is not understood", f"write {item[1:]}L for the last one of the month"
                )
        return None

    def _span(self, what: Field, span: str, item: str, *, open_end: bool) -> list[int]:
        """The numbers of `*`, `a` or `a-b`, in order; `a` alone before a step means a to the end."""
        end_of_all = 6 if what is WEEKDAY else what.high
        if span == "*":
            return list(range(what.low, end_of_all + 1))
        begin, dash, end = span.partition("-")
        low = self._number(what, begin, item)
        if not dash:
            # As a weekday 7 is 0: the week is not read a second time.
            return list(range(low % (end_of_all + 1), end_of_all + 1)) if open_end else [low]
        high = self._number(what, end, item)
        if low <= high:
            return list(range(low, high + 1))
        if what is WEEKDAY:  # FRI-MON: a week has no end
            return [*range(low % 7, 7 if low < 7 else 0), *range(high + 1)]
        raise self._refused(
            what,
            item,
            "ends before it begins",
            f"write {begin}-{what.high},{what.low}-{end} if it goes round",
        )

    def _step(self, what: Field, by: str, item: str, size: int) -> int:
        if not _NUMBER.fullmatch(by) or int(by) == 0:
            raise self._refused(what, item, "has no step that is understood", "write a number from 1 after /")
        if int(by) > size:
            raise self._refused(what, item, f"steps over all its {size} values", "name the one that is meant")
        return int(by)

    def _number(self, what: Field, text: str, item: str) -> int:
        if text in what.names:
            return what.names[text]
        if not _NUMBER.fullmatch(text):
            raise self._refused(what, item, "is not understood")
        if not what.low <= int(text) <= what.high:
            raise self._refused(what, item, f"is not within {what.low}-{what.high}")
        return int(text)

    def _check_dates(self, cron: Cron) -> None:
        """Refuse days that never come: 30 February, or the 31st as a third Friday."""
        longest = max(LONGEST_MONTHS[month] for month in cron.months)
        days = cron.days
        numbered = days.dates | days.nearest
        if numbered and not days.last and not days.last_workday and min(numbered) > longest:
            raise UsageError(
                f"cron {shown(self.text)}: day-of-month {self.words[3]} never comes in month {self.words[4]}",
                "name a day that the month has; L is the last one",
            )
        if cron.at_or_after(datetime(2000, 1, 1)) is None:
            raise UsageError(
                f"cron {shown(self.text)}: day-of-month {self.words[3]} is never weekday {self.words[5]}"
                f" in month {self.words[4]}",
                "with * at the beginning of either field, a day must match both",
            )

    def _refused(self, what: Field, item: str, why: str, hint: str = "") -> UsageError:
        return UsageError(
            f"cron {shown(self.text)}: {what.name} {shown(item)} {why}", hint or f"give {what.signs}"
        )


Item = int | tuple[str, int]


def _sort_dates(items: set[Item], days: Days) -> None:
    for item in items:
        if isinstance(item, int):
            days.dates.add(item)
        elif item[0] == "W":
            days.nearest.add(item[1])
        elif item[0] == "L":
            days.last = True
        else:
            days.last_workday = True


def _sort_weekdays(items: set[Item], days: Days) -> None:
    for item in items:
        if isinstance(item, int):
            days.weekdays.add(item)
        elif item[0] == "L":
            days.last_weekdays.add(item[1])
        else:
            days.nth.add((item[1], int(item[0][1:])))
