"""Weighted queue lists: the decision, and what real workers make of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuety import Queuety
from queuety.policy.shares import EVERY, Shares, effective, quotas
from queuety.store import claims
from queuety.store.claims import Want
from queuety.store.connect import Connection
from queuety.store.lanes import LARGEST_CAP, Lanes
from tests.daemon import daemon, read_ledger, until

# ── the decision ──────────────────────────────────────────────────────────────────────────────────


class Line:
    """Queues in memory, worked by a claim that does what the statement does."""

    def __init__(self, weights: dict[str, int], backlog: dict[str, int]) -> None:
        self.weights = weights
        self.left = dict(backlog)
        self.shares = Shares(weights)
        self.ran: list[str] = []

    def claim(self, size: int, begun: int | None = None) -> int:
        """Claim up to `size` jobs and run the first `begun` of them (default all); returns how many came."""
        brought: list[str] = []
        for queues, cap in self.shares.plan(size):
            given = 0
            for queue in queues:
                count = min(self.left[queue], cap - given, size - len(brought))
                given += count
                brought += [queue] * count
        jobs = sorted(brought, key=list(self.weights).index)
        jobs = self.shares.deal(jobs, str, size)[:begun]
        for queue in jobs:
            self.left[queue] -= 1
        self.shares.ran(jobs)
        self.ran += jobs
        return len(brought)

    def waits(self, queue: str, since: int = 0) -> int:
        """The most jobs of others between two of this queue's."""
        places = [-1] + [place for place, one in enumerate(self.ran[since:]) if one == queue]
        return max((b - a - 1 for a, b in pairwise(places)), default=len(self.ran))


PLENTY = 10**9
WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=6).map(
    lambda all_: {f"q{number}": weight for number, weight in enumerate(all_)}
)
SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=20)


def test_three_to_one_is_three_to_one_in_every_window():
    line = Line({"a": 3, "b": 1}, {"a": PLENTY, "b": PLENTY})
    for size in [1, 4, 16, 64, 256, 500, 1, 1, 1]:
        line.claim(size)

    for start in range(len(line.ran) - 80):
        assert 58 <= Counter(line.ran[start : start + 80])["a"] <= 62


@settings(deadline=None)
@given(WEIGHTS, SIZES)
def test_shares_converge_to_the_weights_whatever_the_sizes_of_claims(weights, sizes):
    line = Line(weights, dict.fromkeys(weights, PLENTY))
    while len(line.ran) < 4000:
        for size in sizes:
            line.claim(size)

    counts = Counter(line.ran)
    for queue, share in effective(weights).items():
        assert abs(counts[queue] - share * len(line.ran)) <= max(20, 0.02 * len(line.ran))


@settings(deadline=None)
@given(WEIGHTS, SIZES, st.integers(0, 2**32))
def test_what_is_given_back_is_not_charged(weights, sizes, seed):
    chance = Random(seed)
    line = Line(weights, dict.fromkeys(weights, PLENTY))
    while len(line.ran) < 2000:
        for size in sizes:
            line.claim(size, chance.randint(1, size))

    counts = Counter(line.ran)
    for queue, share in effective(weights).items():
        assert abs(counts[queue] - share * len(line.ran)) <= max(20, 0.03 * len(line.ran))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_no_share_is_below_the_floor_and_they_are_the_whole(weights):
    shares = effective({str(number): weight for number, weight in enumerate(weights)})

    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) >= 1 / max(EVERY, 2 * len(weights)) - 1e-9


def test_shares_above_the_floor_are_those_of_the_weights():
    assert effective({"a": 3, "b": 1}) == pytest.approx({"a": 0.75, "b": 0.25})
    assert effective({"a": 1000, "b": 1}) == pytest.approx({"a": 0.95, "b": 0.05})


@settings(deadline=None)
@given(WEIGHTS, SIZES)
def test_a_strict_queue_that_never_ends_leaves_one_job_in_twenty_to_the_others(weights, sizes):
    weights = {"s": 0, **weights}
    line = Line(weights, dict.fromkeys(weights, PLENTY))
    while len(line.ran) < 4000:
        for size in sizes:
            line.claim(size)

    others = len(line.ran) - Counter(line.ran)["s"]
    assert abs(others - len(line.ran) / EVERY) <= 50


@settings(deadline=None)
@given(st.booleans(), WEIGHTS, st.just([1]) | SIZES, st.integers(0, 2**32))
def test_nobody_waits_for_ever_whatever_the_others_do(strict, weights, sizes, seed):
    """While the others fill and empty as they like."""
    weights = {"s": 0, **weights} if strict else weights
    line = Line(weights, dict.fromkeys(weights, 0))
    chance = Random(seed)
    watched = chance.choice([queue for queue, weight in weights.items() if weight])
    line.left[watched] = PLENTY
    for _ in range(200):
        for queue in [one for one in weights if one != watched]:
            line.left[queue] += chance.choice([0, 0, 1, 30, 1000])
        line.claim(chance.choice(sizes))

    share = effective({queue: weight for queue, weight in weights.items() if weight})[watched]
    # Of a claim of many some may get too much, which is made up for later.
    bound = (EVERY if strict else 1) * (2 / share + (len(weights) + 2) * max(sizes))
    assert line.waits(watched) <= bound


@given(st.lists(st.integers(0, 60), min_size=3, max_size=3), SIZES)
def test_a_claim_is_empty_only_if_all_is(backlog, sizes):
    weights = {"s": 0, "a": 1000, "b": 1}
    line = Line(weights, dict(zip(weights, backlog, strict=True)))
    for number in range(2000):
        left = sum(line.left.values())
        assert (line.claim(sizes[number % len(sizes)]) > 0) == (left > 0)
        if not left:
            break

    assert not any(line.left.values())


@pytest.mark.parametrize("size", [1, 7, 100, 500])
def test_an_empty_queue_saves_nothing(size):
    line = Line({"a": 3, "b": 1}, {"a": PLENTY, "b": 0})
    while len(line.ran) < 10_000:
        line.claim(size)
    line.left["b"] = PLENTY
    begin = len(line.ran)
    while len(line.ran) < begin + 4000:
        line.claim(size)

    for start in range(begin + 2 * size, len(line.ran) - 80):
        assert 58 <= Counter(line.ran[start : start + 80])["a"] <= 62


@pytest.mark.parametrize("size", [1, 7, 100, 500])
def test_an_empty_strict_queue_owes_nothing_and_comes_first_again(size):
    line = Line({"s": 0, "a": 3, "b": 1}, {"s": 0, "a": PLENTY, "b": PLENTY})
    while len(line.ran) < 5000:
        line.claim(size)
    line.left["s"] = PLENTY
    begin = len(line.ran)
    while len(line.ran) < begin + 4000:
        line.claim(size)

    for start in range(begin, len(line.ran) - 80):
        assert 75 <= Counter(line.ran[start : start + 80])["s"] <= 77


@pytest.mark.parametrize("size", [1, 20, 500])
def test_a_strict_queue_that_trickles_is_served_at_once(size):
    line = Line({"s": 0, "a": 3, "b": 1}, {"s": 0, "a": PLENTY, "b": PLENTY})
    for _ in range(300):
        line.left["s"] = 1
        line.claim(size)

    assert Counter(line.ran)["s"] >= 300 * 19 // 20


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 1)), min_size=1, max_size=8),
)
def test_quotas_are_the_whole(size, queues):
    clocks = {str(number): clock for number, (clock, _) in enumerate(queues)}
    shares = {str(number): share for number, (_, share) in enumerate(queues)}

    assert sum(quotas(size, clocks, shares).values()) == size


# ── the claim ─────────────────────────────────────────────────────────────────────────────────────


def claimed(conn: Connection, lanes: Lanes, size: int) -> list[tuple[str, int]]:
    jobs = claims.turn(conn, None, Want(lanes, size, "w#1", 60.0))[1]
    return [(job.queue, job.priority) for job in jobs]


def test_a_line_gives_no_more_than_its_cap_the_highest_priority_first(conn):
    for priority in (3, 0):
        fill(conn, "ok", {"a": 5, "b": 5}, priority)
    lanes = Lanes(("a", "b"))
    lanes.arrange([(("b",), 7), (("a",), 2)])

    assert claimed(conn, lanes, 100) == [("a", 0)] * 2 + [("b", 0)] * 5 + [("b", 3)] * 2


def test_the_first_lines_come_first_when_the_claim_is_full(conn):
    fill(conn, "ok", {"a": 5, "b": 5})
    lanes = Lanes(("a", "b"))
    lanes.arrange([(("b",), 3), (("a",), 5)])

    assert claimed(conn, lanes, 4) == [("a", 2)] + [("b", 2)] * 3


def test_lanes_keep_their_cursors_in_another_order(conn):
    fill(conn, "ok", {"a": 2, "b": 2})
    lanes = Lanes(("a", "b"))
    claimed(conn, lanes, 3)
    before = lanes.values()

    lanes.arrange([(("b",), 1), (("a",), 1)])
    there = lanes.values()
    lanes.arrange([(("a", "b"), LARGEST_CAP)])

    assert lanes.values() == before
    at, other = (values["after_id"].strip("{}").split(",") for values in (before, there))
    assert other == at[4:] + at[:4]
    assert set(at) != {"0"}


# ── real workers ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def fill(conn: Connection, handler: str, counts: dict[str, int], priority: int = 2) -> dict[int, str]:
    """Write so many jobs into each queue; returns the queue of each job."""
    payload = {"seconds": 0.003} if handler == "sleep" else {}
    rows = conn.execute(
        "INSERT INTO queuety.jobs (handler, payload, queue, priority) SELECT %s, %s::json, given.queue, %s "
        "FROM unnest(%s::text[], %s::int[]) AS given (queue, count), generate_series(1, given.count) "
        "RETURNING id, queue",
        [handler, json.dumps(payload), priority, list(counts), list(counts.values())],
    ).fetchall()
    return dict(rows)


def started(ledger: Path) -> list[int]:
    """Ids of the jobs in the order in which they started."""
    entries = [one for one in read_ledger(ledger) if one.what == "start"]
    return [one.job for one in sorted(entries, key=lambda one: one.at)]


def flushed(database: str, ledger: Path, queues: str, *options: str) -> list[int]:
    with daemon(
        database, f"--queue={queues}", *options, ledger=ledger, log=ledger.with_name("log"), command="flush"
    ) as pool:
        assert pool.wait(60) == 0, pool.log()
    return started(ledger)


@pytest.mark.parametrize("handler", ["ok", "sleep"])
def test_a_worker_keeps_three_to_one_in_every_window(conn, database, ledger, handler):
    queue_of = fill(conn, handler, {"low": 400, "default": 400})

    ran = [queue_of[job] for job in flushed(database, ledger, "default:3,low:1")]

    assert len(ran) == 800
    assert 290 <= Counter(ran[:400])["default"] <= 310
    for start in range(400 - 80):
        assert 54 <= Counter(ran[start : start + 80])["default"] <= 66
    assert set(ran[540:]) == {"low"}  # what an ended queue leaves goes to the others


def test_the_workers_of_a_pool_together_keep_the_shares(conn, database, ledger):
    queue_of = fill(conn, "sleep", {"low": 300, "default": 500})

    ran = [queue_of[job] for job in flushed(database, ledger, "default:3,low:1", "--workers=2")]

    assert 275 <= Counter(ran[:400])["default"] <= 325


@pytest.mark.parametrize("handler", ["ok", "sleep"])
def test_a_strict_queue_that_does_not_end_leaves_its_share_to_the_weighted_ones(
    conn, database, ledger, handler
):
    queue_of = fill(conn, handler, {"low": 100, "default": 100, "critical": 800})

    ran = [queue_of[job] for job in flushed(database, ledger, "critical,default:1,low:1")]

    assert len(ran) == 1000
    for start in range(80, 700):
        assert 72 <= Counter(ran[start : start + 80])["critical"] <= 79
    assert Counter(ran[:800])["low"] >= 15
    assert Counter(ran[:800])["default"] >= 15


@pytest.mark.parametrize("handler", ["ok", "sleep"])
def test_the_last_queue_moves_whatever_the_weights(conn, database, ledger, handler):
    queue_of = fill(conn, handler, {"low": 100, "default": 500})

    ran = [queue_of[job] for job in flushed(database, ledger, "default:1000,low:1")]

    assert 17 <= Counter(ran[:400])["low"] <= 24
    for start in range(80, 320):
        assert Counter(ran[start : start + 80])["low"] >= 2


def test_priority_due_time_and_id_hold_inside_a_weighted_queue(conn, database, ledger):
    jobs: dict[tuple[str, int], list[int]] = {}
    for _ in range(3):
        for priority in (3, 2, 1, 0):
            for job, queue in fill(conn, "ok", {"a": 15, "b": 15}, priority).items():
                jobs.setdefault((queue, priority), []).append(job)

    ran = flushed(database, ledger, "a:3,b:1")

    for queue in ("a", "b"):
        expected = [job for priority in range(4) for job in jobs[queue, priority]]
        assert [job for job in ran if job in set(expected)] == expected


def test_a_paused_queue_saves_nothing(app, conn, database, ledger, tmp_path):
    queue_of = fill(conn, "sleep", {"low": 300, "default": 900})
    app.pause("low")

    with daemon(database, "--queue=default:1,low:1", ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: len(started(ledger)) >= 200)
        app.resume("low")
        until(lambda: len(started(ledger)) >= 600)
        pool.stop()

    ran = [queue_of[job] for job in started(ledger)]
    first = ran.index("low")
    assert first >= 200
    for start in range(first, 600 - 80):
        assert 32 <= Counter(ran[start : start + 80])["low"] <= 48


def test_a_list_in_code_is_the_same_as_on_the_command_line(database):
    app = Queuety(database)
    ran: list[str] = []

    @app.job
    def run(queue: str) -> None:
        ran.append(queue)

    for queue in ("low", "default", "critical"):
        run.using(queue=queue).enqueue_many([{"queue": queue}] * 40)

    app.worker(queues=["critical", "default:3", "low:1"]).flush()
    app.close()

    # Of the 40 strict ones, two places are for the others.
    assert Counter(ran[:42])["critical"] >= 39
    assert 27 <= Counter(ran[43:83])["default"] <= 33
    assert len(ran) == 120


@pytest.mark.parametrize(
    "queues", ["a:0", "a:1001", "a:", "a:x", "a:-1", "a:1.5", ":3", "a:1,b", "a:1,a:2", "a:1:2"]
)
@pytest.mark.parametrize("command", ["work", "flush"])
def test_a_list_that_cannot_be_meant_ends_the_command_before_anything_starts(
    database, tmp_path, command, queues
):
    with daemon(database, f"--queue={queues}", log=tmp_path / "log", command=command) as pool:
        assert pool.wait(30) == 2

        assert "Traceback" not in pool.log()
        assert "pool" not in pool.log()


def test_the_title_shows_the_list_as_it_was_given(database, tmp_path):
    with daemon(database, "--queue=critical,default:3,low:1", log=tmp_path / "log") as pool:
        [worker] = pool.ready()
        assert "[critical,default:3,low:1]" in " ".join(worker.cmdline())
        assert pool.stop() == 0
