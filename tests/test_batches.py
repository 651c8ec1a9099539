"""Quick jobs are claimed together; none of them has to wait for, or suffers from, a companion that is not quick."""

from __future__ import annotations

import time

import pytest

from queuety import Queuety
from tests.checks import attempts, ends, sound, starts, states
from tests.daemon import daemon, read_ledger, until

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_WORKER_MAX_JOBS": "0"}


def warm_up(app, count=400):
    """Let the workers learn that the handler is quick."""
    for job in list(app.enqueue_many([("maybe_slow", {})] * count))[-20:]:
        job.wait(20)


def company(app, database, *, how, seconds=0.0, before=40, after=60):
    """Write quick jobs around one that is not, so that one claim brings them all."""
    written = app.enqueue_many(
        [
            *[("maybe_slow", {})] * before,
            ("maybe_slow", {"how": how, "seconds": seconds}),
            *[("maybe_slow", {})] * after,
        ]
    )
    jobs = list(written)
    return jobs[:before], jobs[before], jobs[before + 1 :]


@pytest.mark.parametrize("how", ["sleep", "c"])
def test_jobs_held_behind_one_that_turns_out_long_run_elsewhere(database, tmp_path, how):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        warm_up(app)
        before, long, after = company(app, database, how=how, seconds=5)
        until(lambda: starts(ledger)[long.id])
        began = time.monotonic()
        for job in [*before, *after]:
            assert job.wait(4).state == "completed"
        took = time.monotonic() - began
        assert long.state() == "processing"
        assert long.wait(8).attempts == 1
        assert pool.stop() == 0

    busy = next(one.pid for one in read_ledger(ledger) if one.job == long.id)
    ran_by = {one.job: one.pid for one in read_ledger(ledger)}
    assert took < 2
    assert any(ran_by[job.id] != busy for job in after), "somebody else has taken them"
    assert set(starts(ledger).values()) == {1}
    assert set(attempts(database).values()) == {1}
    sound(database, ledger, pool)


def test_jobs_held_behind_a_long_one_go_on_with_a_single_worker_too(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        warm_up(app)
        before, long, after = company(app, database, how="sleep", seconds=1.5)
        until(lambda: starts(ledger)[long.id])
        until(
            lambda: {job.state() for job in before} == {"completed"}, 1, "settled though a long one follows"
        )
        until(lambda: {job.state() for job in after} == {"pending"}, 1, "given back")
        assert {job.job().attempts for job in after} == {0}
        for job in [long, *after]:
            assert job.wait(8).attempts == 1
        assert pool.stop() == 0

    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)


def test_a_result_is_stored_though_its_companion_is_long(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        warm_up(app)
        jobs = list(
            app.enqueue_many(
                [("maybe_slow", {"how": "a"})] * 20 + [("maybe_slow", {"how": "sleep", "seconds": 3})]
            )
        )
        until(lambda: starts(ledger)[jobs[-1].id])
        assert [job.result(1) for job in jobs[:-1]] == ["a"] * 20
        assert jobs[-1].state() == "processing"
        assert jobs[-1].result(5) == "sleep"
        assert pool.stop() == 0

    sound(database, ledger, pool)


@pytest.mark.parametrize("handler", ["kill_self", "segfault", "leave", "exit_politely", "raise_odd"])
def test_a_companion_that_ends_badly_costs_the_others_nothing(database, tmp_path, handler):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        warm_up(app)
        jobs = list(
            app.enqueue_many(
                [("maybe_slow", {})] * 50 + [(handler, {})] + [("maybe_slow", {"how": "x"})] * 50
            )
        )
        bad = jobs.pop(50)
        for job in jobs:
            assert job.wait(10).attempts == 1
        until(lambda: bad.job().error)
        assert pool.stop(30) == 0

    assert all(starts(ledger)[job.id] == 1 for job in jobs)
    sound(database, ledger, pool, tracebacks=True)


def test_a_companion_over_its_time_limit_costs_the_others_nothing(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    env = {**QUICK, "QUEUETY_MAX_EXECUTION_TIME": "1"}

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        pool.ready(1)
        warm_up(app)
        before, long, after = company(app, database, how="c", seconds=30)
        for job in [*before, *after]:
            assert job.wait(10).attempts == 1
        until(lambda: long.job().error)
        app.cancel(long.id)
        assert pool.stop() == 0

    assert all(starts(ledger)[job.id] == 1 for job in [*before, *after])


def test_a_held_job_that_is_cancelled_does_not_run(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        warm_up(app)
        _, long, after = company(app, database, how="c", seconds=1)
        until(lambda: starts(ledger)[long.id])
        app.cancel(after[0].id)
        ended = after[0].wait(5)
        for job in after[1:]:
            job.wait(5)
        assert pool.stop() == 0

    assert ended.state == "cancelled"
    assert starts(ledger)[after[0].id] == 0
    assert ends(ledger)[after[1].id] == 1
    sound(database, ledger, pool)


def test_a_stop_in_the_middle_of_a_batch_gives_the_rest_back(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        warm_up(app)
        app.enqueue_many([("maybe_slow", {})] * 3000)
        until(lambda: len(starts(ledger)) > 600)
        assert pool.stop() == 0

    begun = len(starts(ledger)) - 400
    assert states(database) == {"completed": 400 + begun, "pending": 3000 - begun}
    assert {job.attempts for job in app.jobs(state="pending", limit=3000)} <= {0}
    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)
