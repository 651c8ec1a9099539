"""Whether a job may begin: a pure function of the profile, the place and the rules."""

from __future__ import annotations

import pytest

from queuety.policy.admission import HERE, MB, Kind, NotHere, Place, Rules, admit, room_for
from queuety.policy.profile import CLASSES, Profile, Tally, class_of, percentile

RULES = Rules(memory=16 * MB, system=128 * MB, time_s=0.5)


def takes(mb: int = 100, *, passing: int | None = None, mean_s: float = 1.0, p95_s: float = 2.0) -> Profile:
    return Profile(10, mean_s, p95_s, mb * MB, None if passing is None else passing * MB)


def place(**sizes: float) -> Place:
    """Sizes in MB."""
    known = {
        name: int(value) * MB
        for name, value in sizes.items()
        if name not in ("left_s", "pressure", "kept", "alone")
    }
    rest = {name: value for name, value in sizes.items() if name not in known}
    return Place(**{**known, **rest})  # type: ignore[arg-type]


# ── who is let in ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("profile", "where"),
    [
        (None, place(limit=1, size=900, available=0, left_s=0.0)),
        (Profile(1, 1.0, 1.0, None), place(limit=1, size=900, available=0)),
        (takes(0), place(limit=1, size=900, available=0)),
        (takes(100), place()),
        (takes(100), place(limit=256, base=40, size=140)),
        (takes(100), place(available=228)),
        (takes(100, p95_s=2.0), place(left_s=2.5)),
        (takes(100), place(available=900, pressure=50.0, alone=True)),
    ],
    ids=[
        "without a history",
        "whose peak is not known",
        "that takes next to nothing",
        "where nothing is limited",
        "up to the worker's limit less what is kept free",
        "up to what is available less what is kept free",
        "that ends just in time",
        "under pressure of others, if nothing of ours runs",
    ],
)
def test_a_job_is_let_in(profile, where):
    assert admit(profile, where, RULES) == HERE


@pytest.mark.parametrize(
    ("profile", "where", "kind", "fresh"),
    [
        (takes(100), place(limit=256, base=40, size=141), Kind.WORKER, True),
        (takes(101, passing=101), place(limit=156, base=40, size=40), Kind.WORKER, False),
        (takes(100), place(available=227), Kind.SYSTEM, False),
        (takes(100), place(available=900, pressure=10.0, alone=False), Kind.SYSTEM, False),
        (takes(100, p95_s=2.0), place(left_s=2.4), Kind.TIME, False),
        (takes(100, mean_s=3.0, p95_s=2.0), place(left_s=3.4), Kind.TIME, False),
        (takes(100), place(limit=256, base=40, size=200, available=10, left_s=0.1), Kind.TIME, False),
    ],
    ids=[
        "where a fresh worker would do",
        "where no worker would do",
        "where too little is available",
        "where memory is pressed and others run",
        "that would not end in time",
        "whose mean is longer than its p95",
        "for the time first: that costs nothing to find out",
    ],
)
def test_a_job_is_not_let_in(profile, where, kind, fresh):
    answer = admit(profile, where, RULES)

    assert isinstance(answer, NotHere)
    assert (answer.kind, answer.fresh) == (kind, fresh)
    assert answer.reason


def test_the_worker_itself_is_not_counted_twice():
    heavy = place(limit=512, base=300, size=300)

    assert admit(takes(190), heavy, RULES) == HERE


def test_what_a_run_leaves_behind_is_the_workers_size_and_no_part_of_the_next_runs_need():
    model = takes(400, passing=20)

    assert admit(model, place(limit=600, base=100, size=500), RULES) == HERE


def test_a_limit_that_nobody_has_promised_holds_up_only_what_a_fresh_worker_can_take():
    assert admit(takes(300), place(limit=128, base=40, size=40, kept=False), RULES) == HERE
    assert admit(takes(60), place(limit=128, base=40, size=100, kept=False), RULES) != HERE


def test_a_system_that_is_not_to_be_looked_at_is_not():
    assert admit(takes(100), place(available=0), Rules(aware=False)) == HERE


def test_a_refusal_tells_its_figures():
    answer = admit(takes(100), place(available=200), RULES)

    assert isinstance(answer, NotHere)
    assert answer.reason == "it takes 100 MB, and 200 MB are to be had here with 128 MB kept free"


@pytest.mark.parametrize(
    ("profile", "where", "count"),
    [
        (None, place(available=0), 1000),
        (takes(100), place(available=127), 0),
        (takes(100), place(available=228), 1),
        (takes(100), place(available=428), 3),
        (takes(100), place(available=428, pressure=20.0, alone=True), 1),
        (takes(100), place(available=428, pressure=20.0, alone=False), 0),
        (takes(100), place(available=428, limit=128, base=40), 0),
        (takes(100), place(), 1000),
    ],
)
def test_room_is_counted_in_jobs(profile, where, count):
    assert room_for(profile, where, RULES) == count


# ── profiles ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_duration_has_a_class_that_ends_with_it_or_later():
    assert class_of(0.0) == class_of(1e-9) == 0
    assert class_of(1.0) == 24
    assert class_of(1.0001) == 25
    assert class_of(1e12) == CLASSES - 1
    assert [class_of(2.0**n) for n in range(-12, 20)] == list(range(0, 64, 2))


@pytest.mark.parametrize("seconds", [0.0003, 0.01, 0.7, 1.0, 33.0, 4000.0])
def test_the_p95_of_equal_runs_is_their_duration_or_a_little_longer(seconds):
    tally = Tally()
    for _ in range(100):
        tally.add(seconds)

    profile = tally.profile()

    assert profile is not None
    assert 0.97 * seconds <= profile.p95_s <= 1.42 * seconds
    assert profile.mean_s == pytest.approx(seconds)


def test_the_p95_tells_of_the_slow_ones():
    durations = [0] * CLASSES
    durations[class_of(0.01)] = 90
    durations[class_of(8.0)] = 10

    assert percentile(durations, 0.5) <= 0.011
    assert percentile(durations, 0.95) == pytest.approx(8.0, rel=0.3)
    assert percentile([0] * CLASSES, 0.95) == 0.0


def test_tallies_add_up():
    one, other = Tally(), Tally()
    one.add(1.0)
    one.took(50, 40)
    other.add(3.0)
    other.took(30, 30)

    one.merge(other)

    assert (one.runs, one.seconds, one.peak, one.passing) == (2, 4.0, 50, 40)
    assert sum(one.durations) == 2
    assert Tally().profile() is None
