"""A stream is the same whenever it is read: whatever happens to a job, and however the reading is cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import UsageError
from queuety.model import Event, State, StreamEvent
from queuety.store.watching import Glimpse, Standing
from queuety.watching.place import Cursor, Place
from queuety.watching.stream import compose

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
ERROR = {"type": "ValueError", "message": "no", "traceback": "secret"}


@dataclass
class Life:
    """A job and its journal, as the statements leave them."""

    job: Standing = field(
        default_factory=lambda: Standing(State.PENDING, "ok", "default", 0, None, None, None, None)
    )
    lines: list[Event] = field(default_factory=list)
    at: datetime = BEGIN

    def does(self, what: str) -> None:
        """Do it, if the job is in a state for it."""
        self.at += timedelta(seconds=1)
        state = self.job.state
        if state is State.PENDING:
            if what == "claim":
                self.job = replace(
                    self.job, state=State.PROCESSING, attempts=self.job.attempts + 1, started_at=self.at
                )
            elif what == "replace":
                self.line("replaced", {})
                self.job = replace(self.job, attempts=0)
            elif what in ("cancel", "bury"):
                self.end(what)
        elif state is State.PROCESSING:
            if what in ("progress", "partial", "cancel_requested"):
                self.line(what, {"step": 1})
            elif what in ("retried", "recovered", "snoozed"):
                started = self.job.started_at
                assert started is not None
                attempts = self.job.attempts - (what == "snoozed")
                self.job = replace(self.job, state=State.PENDING, attempts=attempts, started_at=None)
                self.line(what, {"error": ERROR, "delay_s": 1.5, "started_at": started.isoformat()})
            elif what in ("complete", "cancel", "bury"):
                self.end(what)
        elif what == "retry" and state is not State.COMPLETED:
            self.requeue("cancelled" if state is State.CANCELLED else "buried")

    def end(self, what: str) -> None:
        ends = {"complete": State.COMPLETED, "cancel": State.CANCELLED, "bury": State.BURIED}
        if what == "bury":
            started = self.job.started_at
            self.line("buried", {"error": ERROR, "started_at": started and started.isoformat()})
        error = ERROR if what == "bury" else None
        self.job = replace(self.job, state=ends[what], finished_at=self.at, error=error)

    def requeue(self, source: str) -> None:
        started, finished = self.job.started_at, self.job.finished_at
        assert finished is not None
        data: dict[str, Any] = {"from": source, "finished_at": finished.isoformat(), "error": self.job.error}
        data["started_at"] = started and started.isoformat()
        self.line("requeued", data)
        self.job = Standing(State.PENDING, "ok", "default", 0, None, None, None, None)

    def line(self, kind: str, data: dict[str, Any]) -> None:
        number = 10 * (len(self.lines) + 1)
        self.lines.append(Event(number, 1, kind, self.at, self.job.attempts or None, data))

    def glimpse(self, after: int, size: int) -> Glimpse:
        lines = [line for line in self.lines if line.id > after][:size]
        lives = [line.id for line in self.lines if line.id <= after and line.type == "requeued"]
        there = [line.id for line in self.lines if line.id <= after and line.type != "buried"]
        return Glimpse(max(lives, default=0), max(there, default=0), lines, len(lines) == size, self.job)


class Viewer:
    def __init__(self, after: str | None = None) -> None:
        self.cursor = Cursor.after(after)
        self.seen: list[StreamEvent] = []
        self.over = False

    def reads(self, life: Life, size: int = 100, rounds: int = 1) -> None:
        for _ in range(rounds):
            page = compose(1, self.cursor, life.glimpse(self.cursor.read, size))
            self.seen += page.events
            self.cursor = page.cursor
            self.over = page.over
            if not page.more:
                return


def told(events: list[StreamEvent]) -> list[tuple[str, str, dict[str, Any]]]:
    """Without the attempts of an end that is told by the next life, where the row is gone."""
    return [(event.event_id, event.type, event.payload) for event in events]


WORK = [
    "claim",
    "claim",
    "claim",
    "progress",
    "partial",
    "cancel_requested",
    "retried",
    "recovered",
    "snoozed",
]
THINGS = st.sampled_from([*WORK, "replace", "complete", "cancel", "bury", "retry", "retry"])


@given(st.lists(st.tuples(THINGS, st.integers(0, 3)), max_size=60), st.integers(1, 4))
def test_early_and_late_viewers_and_those_that_come_back_see_the_same(story, size):
    life, early, whole = Life(), Viewer(), Viewer()
    back = Viewer()
    lives = 1
    for what, reads in story:
        ended = life.job.state.final
        life.does(what)
        lives += ended and not life.job.state.final
        if reads == 1:
            early.reads(life, size)
        elif reads == 2:  # comes back with the last id that it has, and nothing else
            fresh = Viewer(back.seen[-1].event_id if back.seen else None)
            fresh.reads(life, size)
            back.seen += fresh.seen
        whole.reads(life, 1000)
    for viewer in (early, whole):
        viewer.reads(life, size, rounds=100)
    rest = Viewer(back.seen[-1].event_id if back.seen else None)
    rest.reads(life, size, rounds=100)
    late, pages = Viewer(), Viewer()
    late.reads(life, 1000)
    pages.reads(life, size, rounds=100)

    expected = told(late.seen)
    assert told(early.seen) == told(whole.seen) == told(pages.seen) == expected
    assert told([*back.seen, *rest.seen]) == expected
    places = [Place.parse(event.event_id) for event in late.seen]
    assert places == sorted(set(places))
    for viewer in (late, pages):
        assert [event.at for event in viewer.seen] == sorted(event.at for event in viewer.seen)
    assert late.over == life.job.state.final
    assert sum(event.final for event in late.seen) == lives - (not life.job.state.final)
    assert "secret" not in str(expected)


@given(st.lists(THINGS, max_size=40))
def test_any_event_is_a_place_to_go_on_from(story):
    life, whole = Life(), Viewer()
    for what in story:
        life.does(what)
    whole.reads(life, 1000)

    for count, event in enumerate(whole.seen, 1):
        rest = Viewer(event.event_id)
        rest.reads(life, 1000)
        assert told(rest.seen) == told(whole.seen[count:])


def test_a_journal_that_retention_has_dropped_still_has_one_end():
    life = Life()
    for what in ("claim", "progress", "bury"):
        life.does(what)
    early = Viewer()
    early.reads(life)
    life.lines.clear()
    late = Viewer()

    late.reads(life)

    assert [event.type for event in late.seen] == ["job.started", "job.failed"]
    again = Viewer(early.seen[-1].event_id)
    again.reads(life)
    assert (again.seen, again.over) == ([], True)


def test_a_start_is_told_with_the_time_of_the_first_run():
    life, late = Life(), Viewer()
    for what in ("claim", "progress", "retried", "claim", "progress", "complete"):
        life.does(what)

    late.reads(life)

    assert [(late.seen[0].type, late.seen[0].at)] == [("job.started", BEGIN + timedelta(seconds=1))]


@given(st.lists(THINGS, max_size=20), st.integers(0, 300), st.integers(0, 2), st.lists(THINGS, max_size=10))
def test_a_place_that_is_made_up_gives_no_event_that_others_do_not_see(story, line, part, rest):
    life, whole, lost = Life(), Viewer(), Viewer(f"{line}.{part}")
    for what in story:
        life.does(what)
    lost.reads(life)
    for what in rest:
        life.does(what)
    if not lost.over:
        lost.reads(life)
    whole.reads(life)

    assert {event[:2] for event in told(lost.seen)} <= {event[:2] for event in told(whole.seen)}


@pytest.mark.parametrize("end", ["complete", "bury", "cancel"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_place_beyond_the_end_is_told_the_end_alone_with_its_own_id(end, ended):
    life, whole, lost = Life(), Viewer(), Viewer("999999999.0")
    for what in ("claim", "progress"):
        life.does(what)
    if not ended:
        lost.reads(life)
    life.does(end)
    whole.reads(life)

    lost.reads(life)

    assert told(lost.seen) == told(whole.seen[-1:])
    assert lost.over


def test_whoever_says_to_have_seen_an_end_beyond_all_is_told_nothing_more():
    life, lost = Life(), Viewer("999999999.2")
    for what in ("claim", "complete"):
        life.does(what)

    lost.reads(life)

    assert (lost.seen, lost.over) == ([], True)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("way", [(), ("progress",), ("retried", "claim")])
def test_the_start_of_an_earlier_life_keeps_its_time(way, noted):
    life, late = Life(), Viewer()
    for what in ("claim", *way, "bury", "retry", "claim", "progress", "complete"):
        life.does(what)
        if not noted and what == "bury":  # as journals of before have it
            life.lines[-1] = replace(life.lines[-1], data={"error": ERROR})

    late.reads(life)

    first, second = (event for event in late.seen if event.type == "job.started")
    failed = next(event for event in late.seen if event.type == "job.failed")
    assert first.at == BEGIN + timedelta(seconds=1)
    assert first.at < failed.at < second.at
    assert second.at == life.job.started_at


@pytest.mark.parametrize(
    "text", ["", None, "0", "0.0", "57", "57.0", "57.1", "57.2", "9223372036854775807.2"]
)
def test_a_place_is_what_its_event_id_says(text):
    line, _, part = (text or "0").partition(".")

    assert Place.parse(text) == (int(line), int(part or 0))


@pytest.mark.parametrize(
    "text", [" 1.0", "1.0 ", "1.0\n", "1,0", "1.9", "+1", "0x1", "9223372036854775808", b"1", 1]
)
def test_anything_else_is_no_place(text):
    with pytest.raises(UsageError, match="event"):
        Place.parse(text)
