"""Watching: one listener a process, for any number of viewers, and nothing left of those that are gone."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from queuety import Queuety, StreamEvent, UsageError
from queuety.errors import DatabaseUnreachable, JobNotFound, SchemaMismatch, WrongState
from queuety.features.recover import recover
from queuety.model import Again, Bury, Cancel, Complete, ErrorInfo
from queuety.policy.retry import Backoff
from queuety.store import claims, connect, events, reader, watching
from queuety.store.batch import Batch
from queuety.store.claims import Claimed, Want
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes
from queuety.watching import listener
from tests.daemon import daemon, until
from tests.servers import own_server
from tests.test_streams import APP, Seen, place, told, types

ERROR = ErrorInfo("ValueError", "on purpose")


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification makes the listener look again."""
    monkeypatch.setattr(listener, "POLL_S", 3600.0)


def claim(conn: Connection, size: int = 1) -> list[Claimed]:
    return claims.turn(conn, None, Want(Lanes(("default",)), size, "w#1", 60.0)).jobs


def settle(conn: Connection, job: Claimed, settlement: Complete | Again | Bury | Cancel) -> None:
    batch = Batch(job.lease)
    batch.add(job.id, settlement)
    assert claims.turn(conn, batch, None).settled == 1


def note(conn: Connection, job: Claimed, number: int) -> bool:
    return events.write(conn, job.id, job.lease, "partial", f'{{"part": {number}}}')


def sessions(conn: Connection) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'queuety listener'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def watched(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.watched").fetchone()
    assert row is not None
    return int(row[0])


def threads() -> int:
    return sum(thread.name == "queuety listener" for thread in threading.enumerate())


# ── told at once ──────────────────────────────────────────────────────────────────────────────────


def test_everything_that_viewers_see_after_the_start_is_told_by_a_notification(app, conn, never_polls):
    job = app.enqueue("ok", max_attempts=5)
    (one,) = claim(conn)
    early = Seen(app, job)
    until(lambda: watched(conn) == 1)
    early.wait_for("job.started")

    note(conn, one, 1)
    early.wait_for("job.partial")
    settle(conn, one, Again(0.0, True, ERROR, "retried"))
    until(lambda: types(early.events)[-1] == "progress")
    (two,) = claim(conn)
    app.cancel(job.id)
    until(lambda: early.events[-1].payload == {"cancelRequested": True})
    settle(conn, two, Cancel())

    assert types(early.all()) == ["started", "partial", "progress", "progress", "canceled"]


@pytest.mark.parametrize("end", [Complete("7"), Bury(ERROR)])
def test_an_end_is_told_by_a_notification(app, conn, never_polls, end):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    early = Seen(app, job)
    until(lambda: watched(conn) == 1)

    settle(conn, claimed, end)

    assert early.all()[-1].final


@pytest.mark.parametrize("verb", ["cancel", "bury", "delete"])
def test_an_end_by_hand_is_told_by_a_notification(app, conn, never_polls, verb):
    job = app.enqueue("ok")
    early = Seen(app, job)
    until(lambda: watched(conn) == 1)
    until(lambda: not early.stream._watch.due)

    getattr(app, verb)(job.id)

    assert early.all()[-1].final


def test_what_settles_calls_the_reactions_once_for_all_jobs_and_only_while_somebody_wants_to_hear(app, conn):
    conn.execute("CREATE TABLE calls (state text, ids bigint[], there bigint)")
    conn.execute(
        """
        CREATE OR REPLACE FUNCTION queuety.ended(state queuety.job_state, ids bigint[]) RETURNS void
        LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO calls
            SELECT ended.state, ended.ids, count(*) FROM queuety.all_jobs AS a
            WHERE a.id = ANY (ended.ids) AND a.state = ended.state;
        END $$
        """
    )
    quiet = app.enqueue("ok").id
    app.cancel(quiet)
    conn.execute("INSERT INTO queuety.watched (job_id, until, listener) VALUES (0, 'infinity', 'nobody')")
    ids = [app.enqueue("ok").id for _ in range(6)]
    app.bury(ids[4])
    app.cancel(ids[5])
    jobs = claim(conn, 4)
    app.cancel(ids[3])
    batch = Batch(jobs[0].lease)
    ends: list[Complete | Bury | Cancel] = [Complete(), Complete(), Bury(ERROR), Cancel()]
    for job, end in zip(jobs, ends, strict=True):
        batch.add(job.id, end)
    claims.turn(conn, batch, None)

    calls = conn.execute("SELECT state, ids, there FROM calls ORDER BY state, ids").fetchall()
    assert calls == [
        ("buried", [ids[2]], 1),
        ("buried", [ids[4]], 1),
        ("cancelled", [ids[3]], 1),
        ("cancelled", [ids[5]], 1),
        ("completed", ids[:2], 2),
    ]


def test_what_happens_between_the_first_look_and_the_registration_is_seen(app, never_polls, monkeypatch):
    job = app.enqueue("ok")
    register = watching.register

    def late(*given: Any) -> None:
        app.cancel(job.id)
        register(*given)

    monkeypatch.setattr(watching, "register", late)

    assert types(Seen(app, job).all()) == ["canceled"]


def test_an_end_is_never_seen_without_what_came_before_it(app, conn, database, monkeypatch):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    rows = reader.rows

    def ends_meanwhile(*given: Any) -> Any:
        found = rows(*given)
        if note(conn, claimed, 1):  # once: then it is settled
            settle(conn, claimed, Complete())
        return found

    monkeypatch.setattr(reader, "rows", ends_meanwhile)
    with connect.connect(database) as own:
        (glimpse,) = watching.look(own, [(job.id, 0)])
    monkeypatch.undo()

    assert (glimpse.job and glimpse.job.state, glimpse.lines) == ("processing", [])
    assert types(list(app.stream(job))) == ["started", "partial", "completed"]


def test_a_job_that_was_to_be_cancelled_when_its_host_was_lost_is_canceled_by_its_recovery(app, conn):
    job = app.enqueue("ok")
    early = Seen(app, job)
    claim(conn)
    early.wait_for("job.started")
    assert app.cancel(job.id) == "processing"
    conn.execute("UPDATE queuety.jobs SET lease_until = now() - interval '1 s'")

    app.recover()

    assert types(early.all()) == ["started", "progress", "canceled"]
    assert app.cancel(job.id) == "cancelled"
    assert told(list(app.stream(job))) == told(early.events)


def test_a_run_that_returns_before_it_hears_of_the_cancel_is_completed_and_nothing_else(app, conn):
    job = app.enqueue("ok")
    early = Seen(app, job)
    (claimed,) = claim(conn)
    early.wait_for("job.started")
    app.cancel(job.id)

    settle(conn, claimed, Complete())

    assert types(early.all()) == ["started", "progress", "completed"]
    with pytest.raises(WrongState):
        app.cancel(job.id)


def test_what_nobody_was_told_of_is_found_all_the_same(app, conn):
    job = app.enqueue("ok")
    early = Seen(app, job)
    until(lambda: watched(conn) == 1)
    conn.execute("TRUNCATE queuety.watched")  # as a crash of the server does

    app.cancel(job.id)

    assert types(early.all()) == ["canceled"]


def test_where_notifications_cannot_come_streams_work_all_the_same(app, conn, monkeypatch):
    monkeypatch.setattr(watching, "listen", lambda *_: False)
    job = app.enqueue("ok")
    early = Seen(app, job)
    (claimed,) = claim(conn)
    until(lambda: types(early.events) == ["started"])
    settle(conn, claimed, Complete())

    assert types(early.all()) == ["started", "completed"]
    assert watched(conn) == 0


def test_a_role_that_may_only_look_may_watch(database, conn, login):
    url = login("only_looks")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO only_looks")
    conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA queuety TO only_looks")
    with closing(Queuety(database)) as app, closing(Queuety(url)) as looks:
        job = app.enqueue("ok")
        early = Seen(looks, job.id)
        until(lambda: not early.stream._watch.unknown)
        app.cancel(job.id)

        assert types(early.all()) == ["canceled"]


# ── no gap and no double ──────────────────────────────────────────────────────────────────────────


def test_a_viewer_that_comes_back_again_and_again_misses_nothing_and_sees_nothing_twice(
    app, database, tmp_path
):
    job = app.enqueue("steps", {"count": 60, "pause": 0.01})
    seen: list[StreamEvent] = []
    dice = random.Random(7)
    with daemon(database, app=APP, log=tmp_path / "log"):
        while not (seen and seen[-1].final):
            with app.stream(job, after=seen[-1].event_id if seen else None) as stream:
                for _ in range(dice.randint(1, 9)):
                    event = next(stream, None)
                    if event is None:
                        break
                    seen.append(event)

    assert types(seen) == ["started", *["partial"] * 60, "completed"]
    assert [event.payload["part"] for event in seen[1:-1]] == list(range(60))
    assert told(seen) == told(list(app.stream(job)))


def test_a_long_history_comes_in_pages_without_gap_or_double(app, conn):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    conn.execute(
        "INSERT INTO queuety.job_events (job_id, attempt, type, data) "
        "SELECT %s, 1, CASE WHEN n %% 3 = 0 THEN 'replaced' ELSE 'partial' END, json_build_object('part', n) "
        "FROM generate_series(1, 1500) AS n",
        [job.id],
    )
    settle(conn, claimed, Complete())

    seen = list(app.stream(job))

    assert [e.payload["part"] for e in seen if e.type == "job.partial"] == [n for n in range(1501) if n % 3]
    assert seen == app.history(job.id, limit=10_000)
    assert seen[:7] == app.history(job.id, limit=7)
    assert seen[7:] == app.history(job.id, after=seen[6].event_id, limit=10_000)


def test_large_events_come_a_few_at_a_time(app, conn):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    large = '{"text": "' + "x" * 30_000 + '"}'
    for _ in range(12):
        events.write(conn, job.id, claimed.lease, "partial", large)

    (glimpse,) = watching.look(conn, [(job.id, 0)])

    assert glimpse.more
    assert len(glimpse.lines) == 3
    settle(conn, claimed, Complete())
    assert len(list(app.stream(job))) == 14


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_events_that_several_write_at_a_time_become_visible_in_their_order(app, database, rounds):
    """Parts, cancel requests and recoveries of one job meet; a viewer has seen all, once, as a late one does."""
    with connect.connect(database) as conn:
        for number in range(rounds):
            job = app.enqueue("ok", max_attempts=2, backoff=[0])
            early = Seen(app, job)
            (claimed,) = claim(conn)
            over = threading.Event()

            def parts(claimed: Claimed = claimed, over: threading.Event = over) -> None:
                with connect.connect(database) as own:
                    count = 0
                    while note(own, claimed, count := count + 1) and count < 400:
                        pass
                    over.set()

            def recoveries(job_id: int = job.id, over: threading.Event = over) -> None:
                with connect.connect(database) as own:
                    while not over.wait(0.001):
                        own.execute(
                            "UPDATE queuety.jobs SET lease_until = now() - interval '1 s' WHERE id = %s "
                            "AND state = 'processing' AND attempts = 1",
                            [job_id],
                        )
                        recover(own, Backoff("fixed", 0.0))
                        if random.random() < 0.1:
                            return

            def cancels(job_id: int = job.id) -> None:
                time.sleep(random.random() * 0.05)
                app.cancel(job_id)

            works: list[Callable[[], None]] = [parts, recoveries, *([cancels] * (number % 2))]
            doing = [threading.Thread(target=one) for one in works]
            for one in doing:
                one.start()
            for one in doing:
                one.join()
            with connect.connect(database) as own:
                for left in claim(own):
                    settle(own, left, Complete())
                if app.find(job.id).state == "processing":
                    own.execute("UPDATE queuety.jobs SET lease_until = now() - interval '1 s'")
                    recover(own, Backoff("fixed", 0.0))
                    for left in claim(own):
                        settle(own, left, Complete())
            seen = early.all()
            assert told(seen) == told(list(app.stream(job)))
            assert [place(e) for e in seen] == sorted({place(e) for e in seen})
            assert sum(event.final for event in seen) == 1


def test_ids_beyond_31_bits_are_ids_like_others(app, conn, database, tmp_path):
    for sequence in ("event_ids", "leases", "jobs_id_seq"):
        conn.execute(f"SELECT setval('queuety.{sequence}', {2**31 + 10})")
    job = app.enqueue("broken", {"parts": 2}, max_attempts=2, backoff=[0.1])
    early = Seen(app, job)
    with daemon(database, app=APP, log=tmp_path / "log"):
        seen = early.all()

    assert job.id > 2**31
    assert types(seen) == ["started", "partial", "partial", "progress", "partial", "partial", "failed"]
    assert place(seen[1])[0] > 2**31
    for count, event in enumerate(seen, 1):
        assert told(list(app.stream(job, after=event.event_id))) == told(seen[count:])


# ── progress is bounded ───────────────────────────────────────────────────────────────────────────


def test_a_hundred_thousand_reports_are_a_few_events_with_the_last_value_and_the_end(app, database, tmp_path):
    job = app.enqueue("reports", {"times": 100_000})
    early = Seen(app, job)
    with daemon(database, app=APP, log=tmp_path / "log"):
        seen = early.all(60)

    found = app.find(job.id)
    assert found.finished_at is not None
    assert found.started_at is not None
    took = (found.finished_at - found.started_at).total_seconds()
    assert types(seen) == ["started", *["progress"] * (len(seen) - 2), "completed"]
    assert seen[-2].payload == {"step": 100_000, "total": 100_000, "message": "counting"}
    assert len(seen) - 2 <= 2 * took + 23


# ── one listener ──────────────────────────────────────────────────────────────────────────────────


def test_many_viewers_cost_one_connection_and_one_look_and_none_cost_nothing():
    with (
        own_server(log_statement="all", log_line_prefix="<%a>") as server,
        closing(Queuety(server.url)) as app,
    ):

        def looks() -> int:
            return sum(
                "<queuety listener>" in line and "reader.place" in line for line in server.log().splitlines()
            )

        def looks_of(viewers: int) -> int:
            seen = [Seen(app, app.enqueue("ok", delay=60)) for _ in range(viewers)]
            until(lambda: not any(one.stream._watch.unknown for one in seen))
            with connect.connect(server.url) as conn:
                assert sessions(conn) == 1
            assert threads() == 1
            before = looks()
            time.sleep(2)
            counted = looks() - before
            for one in seen:
                one.stream.close()
            return counted

        one, many = looks_of(1), looks_of(60)
        with connect.connect(server.url) as conn:
            until(lambda: sessions(conn) == 0, 20)
            assert watched(conn) == 0
        assert threads() == 0
        before = looks()
        time.sleep(1)

        assert 2 <= one <= 2 * 5
        assert many <= 2 * 5
        assert looks() == before


def test_viewers_of_one_job_read_each_event_once_between_them(app, conn, monkeypatch):
    read: list[int] = []
    look = watching.look

    def counting(conn: Connection, readers: list[tuple[int, int]]) -> list[watching.Glimpse]:
        read.append(len(readers))
        return look(conn, readers)

    monkeypatch.setattr(watching, "look", counting)
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    seen = [Seen(app, job) for _ in range(40)]

    def each_has(count: int) -> bool:
        return all(len(one.events) >= count for one in seen)

    for number in range(10):
        note(conn, claimed, number)
        until(partial(each_has, number + 2))
    settle(conn, claimed, Complete())
    for one in seen:
        assert told(one.all()) == told(seen[0].events)

    assert sum(read) < 40 * 10 / 2, "one read for each viewer and event would be 400"


def test_a_slow_viewer_holds_a_page_and_catches_up_when_it_asks(app, conn):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    slow = app.stream(job)
    assert next(slow).type == "job.started"
    quick = Seen(app, job)
    for number in range(1200):
        note(conn, claimed, number)
    settle(conn, claimed, Complete())
    quick.all()

    held = len(slow._watch.inbox)
    rest = list(slow)

    assert held <= watching.LINES
    assert [event.payload["part"] for event in rest[:-1]] == list(range(1200))
    assert rest[-1].final


def test_a_viewer_of_many_jobs_is_handed_no_more_than_it_can_hold(app, conn):
    ids = [app.enqueue("ok").id for _ in range(30)]
    for claimed in claim(conn, 30):
        for number in range(50):
            note(conn, claimed, number)
        settle(conn, claimed, Complete())
    stream = app.stream(ids)
    first = next(stream)

    held = len(stream._watch.inbox)
    rest = list(stream)

    assert held <= listener.FULL + watching.LINES
    assert len([first, *rest]) == 30 * 52


# ── nothing is left ───────────────────────────────────────────────────────────────────────────────


def leaves_nothing(conn: Connection) -> None:
    until(lambda: watched(conn) == 0, 10, "no row")
    until(lambda: sessions(conn) == 0, 10, "no connection")
    until(lambda: threads() == 0, 10, "no thread")


@pytest.mark.parametrize("way", ["close", "drop", "context", "end", "application"])
def test_a_viewer_that_is_gone_leaves_nothing(app, conn, way):
    before = len(os.listdir("/proc/self/fd"))
    job = app.enqueue("ok")
    (claimed,) = claim(conn)
    stream = app.stream(job)
    assert next(stream).type == "job.started"
    until(lambda: watched(conn) == 1)

    if way == "close":
        stream.close()
    elif way == "drop":
        del stream
        gc.collect()
    elif way == "context":
        with stream:
            pass
    elif way == "application":
        app.close()
    else:
        settle(conn, claimed, Complete())
        assert len(list(stream)) == 1

    leaves_nothing(conn)
    app.close()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, 5, "no descriptor")


def test_a_closed_application_tells_its_viewers(app, conn):
    early = Seen(app, app.enqueue("ok"))
    until(lambda: watched(conn) == 1)

    app.close()

    with pytest.raises(DatabaseUnreachable, match="closed"):
        early.all()


def test_what_a_killed_listener_watched_lapses(app, conn):
    conn.execute(
        "INSERT INTO queuety.watched VALUES (1, now() - interval '1 s', 'gone'), (2, 'infinity', 'lives')"
    )

    assert watching.forget_lapsed(conn) == 1

    assert conn.execute("SELECT listener FROM queuety.watched").fetchall() == [("lives",)]


# ── event loops ───────────────────────────────────────────────────────────────────────────────────


def test_an_event_loop_follows_many_jobs_at_a_time(app, conn):
    ids = [app.enqueue("ok").id for _ in range(50)]

    async def follow(job_id: int) -> list[str]:
        return types([event async for event in app.astream(job_id)])

    def complete_all() -> None:
        for _ in ids:
            settle(conn, claim(conn)[0], Complete())

    async def all_of_them() -> list[list[str]]:
        following = [asyncio.create_task(follow(job_id)) for job_id in ids for _ in range(4)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(complete_all)
        return await asyncio.wait_for(asyncio.gather(*following), 30)

    assert asyncio.run(all_of_them()) == [["started", "completed"]] * 200
    leaves_nothing(conn)


def test_a_read_that_is_cancelled_loses_no_event(app, conn):
    job = app.enqueue("ok")
    (claimed,) = claim(conn)

    async def read() -> list[StreamEvent]:
        seen: list[StreamEvent] = []
        async with app.astream(job) as stream:
            writing = asyncio.create_task(asyncio.to_thread(write))
            while not (seen and seen[-1].final):
                try:
                    seen.append(await asyncio.wait_for(anext(stream), 0.003))
                except TimeoutError:
                    continue
            await writing
        return seen

    def write() -> None:
        for number in range(40):
            note(conn, claimed, number)
            time.sleep(0.005)
        settle(conn, claimed, Complete())

    assert [event.payload.get("part") for event in asyncio.run(read())][1:-1] == list(range(40))


def test_a_loop_that_is_gone_takes_its_viewers_along(app, conn):
    job = app.enqueue("ok")

    async def start_and_leave() -> None:
        stream = app.astream(job)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)

    asyncio.run(start_and_leave())
    gc.collect()
    app.cancel(job.id)

    leaves_nothing(conn)


# ── trouble ───────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_is_not_there_is_told_at_the_first_read(app):
    with pytest.raises(JobNotFound, match="4711"):
        next(app.stream(4711))
    with pytest.raises(JobNotFound, match="4711"):
        app.history(4711)


def test_viewers_wait_for_a_database_that_is_restarted():
    with own_server() as server, closing(Queuety(server.url)) as app:
        job = app.enqueue("ok")
        with connect.connect(server.url) as conn:
            (claimed,) = claim(conn)
            early = Seen(app, job)
            early.wait_for("job.started")
        server.kill()
        time.sleep(1)
        server.start()
        with connect.connect(server.url) as conn:
            note(conn, claimed, 1)
            early.wait_for("job.partial", 30)
            until(lambda: watched(conn) == 1, 30, "the registration is made again")
            settle(conn, claimed, Complete())

        assert types(early.all()) == ["started", "partial", "completed"]


def test_a_viewer_that_comes_while_the_database_is_away_is_told():
    with own_server() as server, closing(Queuety(server.url)) as app:
        job = app.enqueue("ok")
        server.kill()

        with pytest.raises(DatabaseUnreachable):
            next(app.stream(job))
        server.start()
        app.cancel(job.id)
        assert types(list(app.stream(job))) == ["canceled"]


def test_a_schema_that_does_not_fit_is_told_to_viewers(app, conn):
    early = Seen(app, app.enqueue("ok"))
    until(lambda: watched(conn) == 1)

    conn.execute("ALTER TABLE queuety.buried_jobs RENAME TO elsewhere")

    with pytest.raises(SchemaMismatch, match="db migrate"):
        early.all()


def test_a_process_forked_while_its_parent_watches_has_a_listener_of_its_own(app, conn):
    job = app.enqueue("ok")
    parents = app.stream(job)
    seen = Seen(app, job)
    until(lambda: watched(conn) == 1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            try:
                next(parents)
            except UsageError:
                os.write(writing, b"refused ")
            own = app.stream(job)
            os.write(writing, (b"watches "))
            os.write(writing, " ".join(types(list(own))).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    until(lambda: watched(conn) == 2, 20, "parent and child")

    app.cancel(job.id)

    assert types(seen.all()) == ["canceled"]
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as told_by_child:
        assert told_by_child.read() == b"refused watches canceled"
    assert status == 0
    assert next(parents).type == "job.canceled"
