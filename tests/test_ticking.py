# mypy: disable-error-code="operator,index,union-attr"
"""Ticks become jobs: once each, in one transaction, whatever else happens at the same moment."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from time import monotonic

import psycopg
import pytest

from queuety.errors import ScheduleExists, ScheduleNotFound, UsageError, WrongState
from queuety.features import schedules, ticking
from queuety.model import Complete, Missed, NewJob, NewSchedule, Overlap, Schedule
from queuety.plain import schedule_fields
from queuety.process.ticker import Ticker
from queuety.store import claims, verbs, workers
from queuety.store import schedules as stored
from queuety.store.batch import Batch, settle
from queuety.store.claims import Want
from queuety.store.connect import Connection, connect
from queuety.store.lanes import Lanes
from tests.daemon import until

SECOND = timedelta(seconds=1)


def new(key: str = "tidy", **given: object) -> NewSchedule:
    job = given.pop("job", NewJob("add", '{"a": 1, "b": 2}'))
    if "cron" not in given and "every_s" not in given:
        given["every_s"] = 60.0
    return NewSchedule(key, job, **given)  # type: ignore[arg-type]


def jobs(conn: Connection) -> list[tuple[int, str]]:
    return [
        (row[0], row[1])
        for row in conn.execute("SELECT id, handler FROM queuety.jobs ORDER BY id").fetchall()
    ]


def back(conn: Connection, key: str, seconds: float) -> None:
    """Let the time of the next tick have come so long ago, and with it the anchor."""
    conn.execute(
        "UPDATE queuety.schedules SET next_at = statement_timestamp() - %(s)s * interval '1 second', "
        "anchor = statement_timestamp() - %(s)s * interval '1 second' WHERE key = %(key)s",
        {"s": seconds, "key": key},
    )


def kinds(conn: Connection, key: str = "tidy") -> list[str]:
    return [tick.kind for tick in reversed(schedules.history(conn, key))]


def test_a_tick_writes_its_job_and_moves_on(conn):
    schedules.add(conn, new())
    back(conn, "tidy", 0.5)

    fired = ticking.fire(conn)

    assert [(tick.kind, tick.job_id) for tick in fired.ticks] == [("run", jobs(conn)[0][0])]
    assert jobs(conn)[0][1] == "add"
    after = schedules.find(conn, "tidy")
    assert after.next_at - after.last_at == 60 * SECOND
    assert after.last_job == jobs(conn)[0][0]
    assert ticking.fire(conn).ticks == []


def test_nothing_is_due_before_its_time(conn):
    schedules.add(conn, new())

    assert ticking.fire(conn).ticks == []
    assert jobs(conn) == []


def test_the_job_has_the_settings_of_its_schedule(conn):
    job = NewJob(
        "add",
        '{"a": 1, "b": -0.0}',
        queue="nightly",
        priority=0,
        max_attempts=7,
        tags=("schedule:tidy", "x"),
        backoff='{"kind": "fixed", "initial": 5}',
        limits='{"group": "g", "concurrency": 2}',
    )
    schedules.add(conn, new(job=job))
    back(conn, "tidy", 0.5)
    ticking.fire(conn)

    row = conn.execute(
        "SELECT queue, priority, max_attempts, tags, backoff, limits, payload::text FROM queuety.jobs"
    ).fetchone()

    assert row[:4] == ("nightly", 0, 7, ["schedule:tidy", "x"])
    assert row[4:6] == ({"kind": "fixed", "initial": 5}, {"group": "g", "concurrency": 2})
    assert json.loads(row[6]) == {"a": 1, "b": -0.0}
    assert str(json.loads(row[6])["b"]) == "-0.0"


def test_jitter_delays_the_job_and_not_the_rhythm(conn):
    schedules.add(conn, new(jitter_s=50.0))
    back(conn, "tidy", 0.5)
    ticking.fire(conn)

    found = schedules.find(conn, "tidy")
    due = conn.execute("SELECT available_at FROM queuety.jobs").fetchone()[0]

    assert timedelta() < due - found.last_at < 50 * SECOND
    assert found.next_at - found.last_at == 60 * SECOND


def test_the_preview_is_what_happens(conn):
    made = schedules.add(conn, new(cron="* * * * * *", jitter_s=50.0))
    planned = schedules.upcoming(made, made.created_at, 2)
    until(lambda: ticking.fire(conn).ticks and len(schedules.history(conn, "tidy")) >= 2)

    ran = [tick.at for tick in reversed(schedules.history(conn, "tidy"))][:2]
    due = [row[0] for row in conn.execute("SELECT available_at FROM queuety.jobs ORDER BY id LIMIT 2")]

    assert ran == [one.at for one in planned]
    assert due == [one.due for one in planned]


def test_every_schedule_of_a_crowd_ticks(conn):
    for number in range(250):
        schedules.add(conn, new(f"s{number}"))
        back(conn, f"s{number}", 0.5)

    rounds = []
    while True:
        fired = ticking.fire(conn)
        rounds.append(len(fired.ticks))
        if not fired.more:
            break

    assert sum(rounds) == 250
    assert len(jobs(conn)) == 250


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_of_many_at_one_tick_one_writes_the_job(conn, database, rounds):
    for number in range(20):
        schedules.add(conn, new(f"s{number}", every_s=3600.0))
    written = 0
    for _ in range(rounds):
        for number in range(20):
            back(conn, f"s{number}", 0.5)
        written += 20
        gate = threading.Barrier(4)

        def fire(gate: threading.Barrier = gate) -> None:
            with connect(database) as own:
                gate.wait()
                for _ in range(5):
                    ticking.fire(own, limit=7)

        threads = [threading.Thread(target=fire) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        while ticking.fire(conn).more:
            pass
        assert len(jobs(conn)) == written


def test_a_tick_that_has_run_does_not_run_again_when_its_time_is_set_back(conn):
    schedules.add(conn, new())
    back(conn, "tidy", 0.5)
    ticking.fire(conn)
    ran = schedules.find(conn, "tidy").last_at
    conn.execute("UPDATE queuety.schedules SET next_at = %s", [ran])

    fired = ticking.fire(conn)

    assert fired.ticks == []
    assert len(jobs(conn)) == 1
    assert schedules.find(conn, "tidy").next_at == ran + 60 * SECOND


def test_a_crash_between_the_job_and_the_bookkeeping_leaves_neither(conn, database):
    schedules.add(conn, new())
    back(conn, "tidy", 0.5)
    conn.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN new; END $$"
    )
    conn.execute("CREATE TRIGGER die BEFORE UPDATE ON queuety.schedules FOR EACH ROW EXECUTE FUNCTION die()")

    with connect(database) as own, pytest.raises(Exception, match=r"terminat|closed|lost"):
        ticking.fire(own)

    assert jobs(conn) == []
    assert schedules.history(conn, "tidy") == []
    conn.execute("DROP TRIGGER die ON queuety.schedules")
    assert [tick.kind for tick in ticking.fire(conn).ticks] == ["run"]


# ── missed ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("missed", "runs", "skipped"), [(Missed.ONCE, 1, 71), (Missed.SKIP, 0, 72), (Missed.ALL, 10, 62)]
)
def test_after_six_hours_of_silence_the_policy_decides_and_the_rest_is_noted(conn, missed, runs, skipped):
    schedules.add(conn, new(every_s=300.0, missed=missed, missed_limit=10))
    back(conn, "tidy", 6 * 3600 - 60)

    fired = ticking.fire(conn)

    assert sum(tick.kind == "run" for tick in fired.ticks) == runs == len(jobs(conn))
    assert [tick.ticks for tick in fired.ticks if tick.kind == "skip"] == [skipped]
    found = schedules.find(conn, "tidy")
    assert found.next_at > datetime.now(UTC)
    assert ticking.fire(conn).ticks == []


def test_bookkeeping_set_back_by_hours_makes_one_job_and_the_normal_rhythm(conn):
    schedules.add(conn, new(cron="*/5 * * * *"))
    conn.execute("UPDATE queuety.schedules SET next_at = next_at - interval '6 hours'")

    ticking.fire(conn)
    ticking.fire(conn)

    assert len(jobs(conn)) == 1
    assert timedelta() < schedules.find(conn, "tidy").next_at - datetime.now(UTC) <= 300 * SECOND


# ── overlap ───────────────────────────────────────────────────────────────────────────────────────


def ticked(conn: Connection, key: str = "tidy") -> Schedule:
    back(conn, key, 0.2)
    ticking.fire(conn)
    return schedules.find(conn, key)


def finish(conn: Connection) -> None:
    for job_id, _ in jobs(conn):
        verbs.cancel(conn, job_id)


def test_allow_writes_a_job_at_each_tick(conn):
    schedules.add(conn, new())
    ticked(conn)
    ticked(conn)

    assert len(jobs(conn)) == 2


def test_skip_leaves_out_ticks_while_the_job_has_not_ended_and_says_why(conn):
    schedules.add(conn, new(overlap=Overlap.SKIP))
    first = ticked(conn)
    ticked(conn)

    assert len(jobs(conn)) == 1
    skipped = schedules.history(conn, "tidy", kind="skip")
    assert [tick.reason for tick in skipped] == [f"job {first.last_job} has not ended"]

    finish(conn)
    ticked(conn)
    assert kinds(conn) == ["run", "skip", "run"]


def test_buffer_runs_one_more_when_the_job_ends(conn):
    schedules.add(conn, new(overlap=Overlap.BUFFER))
    ticked(conn)
    waiting = ticked(conn).buffered_at
    ticked(conn)

    assert len(jobs(conn)) == 1
    assert ticking.fire(conn).ticks == []

    finish(conn)
    fired = ticking.fire(conn)

    assert [(tick.kind, tick.at) for tick in fired.ticks] == [("run", waiting)]
    assert len(jobs(conn)) == 1
    assert schedules.find(conn, "tidy").buffered_at is None


def test_a_job_that_waits_for_its_next_attempt_has_not_ended(conn):
    schedules.add(conn, new(overlap=Overlap.SKIP))
    ticked(conn)
    conn.execute("UPDATE queuety.jobs SET attempts = 1, available_at = now() + interval '1 hour'")
    ticked(conn)

    assert kinds(conn) == ["run", "skip"]


# ── what is bad stays alone ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        "jitter_s = 'Infinity'", "jitter_s = 'NaN'", "job = '[1]'", "payload = '[1]'", "next_at = 'infinity'",
        "next_at = '-infinity'", "buffered_at = 'infinity'", "every_s = 1e300", "key = repeat('k', 3000)", "key = ''",
    ],
)  # fmt: skip
def test_the_table_refuses_what_no_schedule_can_be(conn, change):
    schedules.add(conn, new())

    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(f"UPDATE queuety.schedules SET {change}")


def test_a_buffered_tick_that_has_run_already_stops_nobody(conn):
    schedules.add(conn, new(overlap=Overlap.BUFFER))
    schedules.add(conn, new("other"))
    ticked(conn)
    finish(conn)
    conn.execute("UPDATE queuety.schedules SET buffered_at = last_at WHERE key = 'tidy'")
    back(conn, "other", 0.5)

    ticking.fire(conn)

    assert kinds(conn) == ["run"]
    assert kinds(conn, "other") == ["run"]
    assert schedules.find(conn, "tidy").buffered_at is None


def test_a_schedule_whose_part_the_database_refuses_is_broken_alone(conn):
    for key in ("a", "bad", "c"):
        schedules.add(conn, new(key))
        back(conn, key, 0.5)
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF new.schedule = 'bad' AND new.kind = 'run' THEN RAISE 'no room'; END IF; RETURN new; END $$"
    )
    conn.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON queuety.schedule_ticks FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    ticking.fire(conn)

    assert kinds(conn, "a") == kinds(conn, "c") == ["run"]
    assert kinds(conn, "bad") == ["fail"]
    assert "no room" in str(schedules.find(conn, "bad").broken)
    assert len(jobs(conn)) == 2


@pytest.mark.parametrize("job", ['{"priority": "huge"}', '{"tags": 5}', '{"limits": 7}', '{"unique": 1}'])
def test_settings_that_make_no_job_fail_alone_and_can_be_looked_at(conn, job):
    for key in ("a", "bad"):
        schedules.add(conn, new(key))
        back(conn, key, 0.5)
    conn.execute("UPDATE queuety.schedules SET job = %s WHERE key = 'bad'", [job])

    ticking.fire(conn)

    assert kinds(conn, "a") == ["run"]
    assert schedule_fields(schedules.find(conn, "bad"))["key"] == "bad"


def test_a_process_that_is_suspended_at_a_tick_does_not_keep_the_schedule(conn, database):
    schedules.add(conn, new())
    back(conn, "tidy", 0.5)

    with closing(connect(database)) as suspended:
        suspended.execute("BEGIN")
        stored.due(suspended, 10, 0.0)
        assert ticking.fire(conn).ticks == []
        fired = until(lambda: ticking.fire(conn).ticks, 15, "the lock to be let go")

    assert [tick.kind for tick in fired] == ["run"]


@pytest.mark.parametrize(
    "change",
    ["timezone = 'UTC+3'", "cron = 'x'", "cron = '0 0 30 2 *'", "timezone = ''", "timezone = '../etc'"],
)
def test_a_row_that_is_bad_is_told_once_and_the_others_tick(conn, change, caplog):
    for key in ("a", "b", "c", "bad"):
        schedules.add(conn, new(key, cron="* * * * * *"))
    conn.execute(f"UPDATE queuety.schedules SET {change} WHERE key = 'bad'")
    conn.execute("UPDATE queuety.schedules SET next_at = next_at - interval '2 seconds'")

    for _ in range(3):
        ticking.fire(conn)

    assert {tick.kind for key in "abc" for tick in schedules.history(conn, key)} == {"run"}
    assert all(schedules.history(conn, key) for key in "abc")
    assert [tick.kind for tick in schedules.history(conn, "bad")] == ["fail"]
    assert schedules.find(conn, "bad").state == "broken"
    assert len([line for line in caplog.records if "bad" in line.getMessage()]) == 1


def test_what_is_mended_ticks_again_by_itself(conn):
    schedules.add(conn, new(cron="* * * * * *"))
    conn.execute("UPDATE queuety.schedules SET timezone = 'Nowhere', next_at = now()")
    ticking.fire(conn)
    conn.execute("UPDATE queuety.schedules SET timezone = 'UTC'")

    ticking.revise(conn)

    assert schedules.find(conn, "tidy").state == "active"


def test_a_job_that_the_database_refuses_fails_alone(conn):
    for key in ("a", "bad", "c"):
        schedules.add(conn, new(key))
        back(conn, key, 0.5)
    conn.execute("UPDATE queuety.schedules SET job = '{\"max_attempts\": 100000}' WHERE key = 'bad'")

    ticking.fire(conn)

    assert kinds(conn, "a") == kinds(conn, "c") == ["run"]
    failed = schedules.history(conn, "bad")[0]
    assert (failed.kind, failed.reason.startswith("enqueue: ")) == ("fail", True)
    assert schedules.find(conn, "bad").next_at > datetime.now(UTC)


def test_a_clock_that_was_ahead_for_a_while_stops_no_schedule(conn):
    schedules.add(conn, new())
    conn.execute("UPDATE queuety.schedules SET next_at = now() + interval '1 year'")

    ticking.revise(conn)

    assert schedules.find(conn, "tidy").next_at <= datetime.now(UTC) + 61 * SECOND


def test_revising_leaves_what_is_right_alone(conn):
    made = schedules.add(conn, new())
    schedules.pause(conn, schedules.add(conn, new("other")).key)

    assert ticking.revise(conn) is None
    assert schedules.find(conn, "tidy") == made


def test_a_buffered_tick_that_is_free_does_not_put_off_what_a_dead_scheduler_leaves(conn):
    for key, overlap in (("tidy", Overlap.BUFFER), ("other", Overlap.ALLOW)):
        schedules.add(conn, new(key, overlap=overlap))
    ticked(conn)
    ticked(conn)
    finish(conn)
    back(conn, "other", 0.1)
    workers.register(conn, "scheduler", "gone", [], None, 1)  # and never seen again
    ticker = Ticker()

    def look() -> bool:
        ticker.look(conn)
        ticker.act(conn, monotonic())
        return len(schedules.history(conn, "other")) == 1 and len(schedules.history(conn, "tidy")) == 2

    until(look, 8, "the pool to take over")


# ── unique jobs ───────────────────────────────────────────────────────────────────────────────────


def test_a_unique_job_is_not_written_twice_and_the_skip_is_noted(conn):
    schedules.add(conn, new(job=NewJob("add", "{}", unique=True)))
    ticked(conn)
    ticked(conn)

    assert len(jobs(conn)) == 1
    assert kinds(conn) == ["run", "skip"]
    assert "unique key" in schedules.history(conn, "tidy")[0].reason


# ── how jobs end ──────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_a_job_is_noted_and_told_once(conn):
    schedules.add(conn, new())
    ticked(conn)
    assert ticking.follow(conn) == ([], 0)
    finish(conn)

    ended, _ = ticking.follow(conn)

    assert [(tick.ended, tick.error["type"]) for tick in ended] == [("fail", "JobCancelled")]
    assert ticking.follow(conn) == ([], 0)
    assert schedules.history(conn, "tidy")[0].ended == "fail"


def test_completed_is_done_buried_is_fail_and_deleted_is_gone(conn):
    for key in ("a", "b", "c"):
        schedules.add(conn, new(key))
        ticked(conn, key)
    first, second, third = (job_id for job_id, _ in jobs(conn))
    lanes = Lanes(("default",))
    claimed = claims.turn(conn, None, Want(lanes, 1, "w#1", 60.0)).jobs
    batch = Batch(claimed[0].lease)
    batch.add(first, Complete())
    settle(conn, batch)
    verbs.bury(conn, second, "no use")
    verbs.delete(conn, third)

    ended, _ = ticking.follow(conn)

    assert [tick.ended for tick in ended] == ["done", "fail", "gone"]


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────


def test_a_key_is_taken_once(conn):
    schedules.add(conn, new())

    with pytest.raises(ScheduleExists):
        schedules.add(conn, new())

    assert schedules.add(conn, new(every_s=30.0), replace=True).every_s == 30.0


def test_another_payload_keeps_the_rhythm(conn):
    made = schedules.add(conn, new())
    changed = schedules.add(conn, new(job=NewJob("add", '{"a": 3, "b": 4}')), replace=True)

    assert (changed.next_at, changed.anchor) == (made.next_at, made.anchor)
    assert changed.payload == {"a": 3, "b": 4}


def test_one_that_never_ticks_is_refused(conn):
    with pytest.raises(UsageError, match="never ticks"):
        schedules.add(conn, new(cron="0 0 1 1 *", ends_at=datetime.now(UTC) + SECOND))


def test_a_paused_schedule_runs_nothing_and_notes_what_it_left_out(conn):
    schedules.add(conn, new(every_s=1.0))
    schedules.pause(conn, "tidy", "too loud")
    conn.execute(
        "UPDATE queuety.schedules SET next_at = next_at - interval '5 s', paused_at = paused_at - interval '1 h',"
        " anchor = anchor - interval '5 s'"
    )

    assert ticking.fire(conn).ticks == []
    assert schedules.resume(conn, "tidy")
    assert jobs(conn) == []
    gap = schedules.history(conn, "tidy")[0]
    assert (gap.kind, gap.reason, gap.ticks) == ("skip", "paused: too loud", 5)
    assert schedules.find(conn, "tidy").next_at > datetime.now(UTC) - SECOND
    assert not schedules.resume(conn, "tidy")


def test_run_by_hand_obeys_overlap_and_is_in_the_journal(conn):
    schedules.add(conn, new(overlap=Overlap.SKIP))
    job_id = schedules.run(conn, "tidy")

    with pytest.raises(WrongState, match=f"job {job_id}"):
        schedules.run(conn, "tidy")

    finish(conn)
    schedules.run(conn, "tidy")
    assert [tick.reason for tick in schedules.history(conn, "tidy")] == ["by hand", "by hand"]


def test_a_tick_is_skipped_while_a_job_by_hand_runs(conn):
    schedules.add(conn, new(overlap=Overlap.SKIP))
    schedules.run(conn, "tidy")
    ticked(conn)

    assert sorted(kinds(conn)) == ["run", "skip"]
    assert len(jobs(conn)) == 1


def test_a_removed_schedule_keeps_its_journal_and_an_unknown_one_is_named(conn):
    schedules.add(conn, new())
    ticked(conn)
    schedules.remove(conn, "tidy")

    assert kinds(conn) == ["run"]
    with pytest.raises(ScheduleNotFound):
        schedules.find(conn, "tidy")
    schedules.add(conn, new("tidier"))
    with pytest.raises(ScheduleNotFound, match="tidier"):
        schedules.pause(conn, "tydier")


# ── declared in code ──────────────────────────────────────────────────────────────────────────────


def test_a_synchronisation_adds_changes_and_retires(conn):
    schedules.sync(conn, [new("a"), new("b")], "shop:app")

    done = schedules.sync(conn, [new("a"), new("c", every_s=30.0)], "shop:app")

    assert (done.added, done.changed, done.retired, done.unchanged) == (["c"], [], ["b"], ["a"])
    assert schedules.find(conn, "b").state == "retired"


def test_a_synchronisation_leaves_the_rhythm_and_a_pause_alone(conn):
    schedules.sync(conn, [new("a")], "shop:app")
    schedules.pause(conn, "a")
    before = schedules.find(conn, "a")

    schedules.sync(conn, [new("a", overlap=Overlap.SKIP)], "shop:app")

    after = schedules.find(conn, "a")
    assert (after.overlap, after.state) == (Overlap.SKIP, "paused")
    assert (after.next_at, after.anchor) == (before.next_at, before.anchor)


def test_applications_do_not_retire_each_other(conn):
    schedules.sync(conn, [new("a")], "shop:app")
    schedules.add(conn, new("by-hand"))

    schedules.sync(conn, [new("b")], "bank:app")

    assert [one.state for one in schedules.listing(conn)] == ["active"] * 3


def test_a_retired_schedule_does_not_tick_and_comes_back_without_its_missed_ticks(conn):
    schedules.sync(conn, [new("a", every_s=1.0)], "shop:app")
    schedules.sync(conn, [], "shop:app")
    conn.execute("UPDATE queuety.schedules SET next_at = now() - interval '1 hour'")
    assert ticking.fire(conn).ticks == []

    schedules.sync(conn, [new("a", every_s=1.0)], "shop:app")

    assert schedules.find(conn, "a").next_at > datetime.now(UTC) - SECOND
    assert jobs(conn) == []


def test_what_another_application_declares_is_taken_over_and_told(conn):
    schedules.sync(conn, [new("a")], "shop:app")

    done = schedules.sync(conn, [new("a")], "bank:app")

    assert (done.changed, done.taken) == (["a"], ["a"])
    assert schedules.find(conn, "a").declared_by == "bank:app"
