"""A pool's own /livez, /readyz, /startupz and /metrics."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuety import Queuety
from queuety.process.exposition import Exposition, Family
from queuety.process.ledger import Counter
from queuety.process.metrics import FAMILIES
from tests import ROOT
from tests.daemon import children_of, daemon, until
from tests.scrapes import PROMTOOL, address, get, lint, samples, value
from tests.servers import own_server

HTTP = "--http=127.0.0.1:0"
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) "
    "AND application_name LIKE 'queuety worker%'"
)
OPEN = "application/openmetrics-text; version=1.0.0"


def enqueue(url: str, handler: str, **more):
    return Queuety(url).enqueue(handler, more.pop("payload", {}), **more)


def test_a_pool_tells_that_it_lives_has_started_and_is_ready(database: str, tmp_path: Path):
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        assert get(at, "/livez").status == 200
        until(lambda: get(at, "/readyz").status == 200, what="ready")

        assert get(at, "/startupz")[:2] == (200, "started\n")
        assert get(at, "/readyz")[:2] == (200, "ready\n")

        assert pool.stop() == 0


def test_without_the_setting_nobody_listens(database: str, tmp_path: Path):
    import psutil

    with daemon(database, log=tmp_path / "log") as pool:
        pool.ready()

        assert not [one for one in psutil.Process(pool.pid).net_connections() if one.status == "LISTEN"]


def test_a_pool_that_has_lost_its_database_lives_but_is_not_ready(tmp_path: Path):
    """Liveness must not restart a fleet because its database restarts."""
    with own_server() as server, daemon(server.url, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: get(at, "/readyz").status == 200, what="ready")

        server.kill()

        until(lambda: get(at, "/readyz").status == 503, 30, "not ready")
        assert get(at, "/readyz").text == "the database is away\n"
        assert get(at, "/livez").status == 200
        assert get(at, "/startupz").status == 200
        until(
            lambda: [one.value for one in samples(get(at, "/metrics").text)["queuety_database_up"]] == [0],
            what="the figure too",
        )
        assert "queuety_database_silence_seconds " not in get(at, "/metrics").text
        assert value(get(at, "/metrics").text, "queuety_workers_ready") == 0

        server.start()

        until(lambda: get(at, "/readyz").status == 200, 30, "ready again")


def test_a_draining_pool_is_not_ready_and_lives(database: str, tmp_path: Path):
    enqueue(database, "sleep", payload={"seconds": 3})
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: value(get(at, "/metrics").text, "queuety_workers", state="running"), what="a run")

        pool.signal(signal.SIGTERM)

        until(lambda: get(at, "/readyz")[:2] == (503, "draining\n"), what="draining")
        assert get(at, "/livez").status == 200
        assert pool.wait() == 0


def test_a_keeper_that_hangs_ends_liveness_after_its_grace():
    from queuety.process.health import GRACE_S, Health
    from queuety.process.ledger import Ledger
    from queuety.process.metrics import Tally

    ledger = Ledger(1, counting=True)
    health = Health(ledger, Tally(), look=lambda: pytest.fail("liveness looks at nothing else"))
    assert ledger.figures
    now = time.monotonic()

    ledger.figures.keeper.turned(now, GRACE_S)

    assert health.lives(now + GRACE_S - 1)[0]
    assert not health.lives(now + GRACE_S + 1)[0]
    ledger.figures.keeper.turned(now + GRACE_S + 2, GRACE_S)
    assert health.lives(now + GRACE_S + 3)[0]


def test_a_keeper_that_hangs_is_named_and_the_database_is_not_blamed():
    from queuety.process.health import GRACE_S, HANGS_S, Health
    from queuety.process.ledger import Ledger
    from queuety.process.metrics import Pool, Tally

    ledger = Ledger(1, counting=True)
    page = ledger.pages[0]
    page.ready = time.monotonic()
    pool = Pool("p", "q", "0", 1, [(1, page, False)], 0, False, [0] * len(Counter))
    health = Health(ledger, Tally(), look=lambda: pool)
    assert ledger.figures
    keeper, now = ledger.figures.keeper, time.monotonic()
    assert health.database(now) is None
    assert health.lacks(pool, now) == "the keeper has not reached the database yet"

    keeper.turned(now, GRACE_S)
    keeper.heard(now)

    assert health.database(now + HANGS_S - 1) is True
    assert health.lacks(pool, now + HANGS_S - 1) == ""
    assert health.database(now + HANGS_S + 1) is None
    assert health.lacks(pool, now + HANGS_S + 1) == "the keeper hangs: its loop has not turned for 31 s"
    answer = health.answer("/metrics", "")
    assert answer
    told = samples(answer.body)
    assert told["queuety_database_up"]
    assert told["queuety_database_silence_seconds"]

    keeper.turned(now - HANGS_S - 5, GRACE_S)
    health = Health(ledger, Tally(), look=lambda: pool)
    answer = health.answer("/metrics", "")
    assert answer
    told = samples(answer.body)
    assert not told["queuety_database_up"]
    assert not told["queuety_database_silence_seconds"]
    assert told["queuety_keeper_silence_seconds"][0].value > HANGS_S

    keeper.turned(now, GRACE_S)
    keeper.lost()
    assert health.database(now + 1) is False
    assert health.lacks(pool, now + 1) == "the database is away"


def test_a_keeper_in_its_hourly_duties_does_not_end_readiness():
    from queuety.process.health import Health
    from queuety.process.ledger import Ledger
    from queuety.process.metrics import Pool, Tally

    ledger = Ledger(1, counting=True)
    page = ledger.pages[0]
    page.ready = time.monotonic()
    pool = Pool("p", "q", "0", 1, [(1, page, False)], 0, False, [0] * len(Counter))
    assert ledger.figures
    now = time.monotonic()
    ledger.figures.keeper.heard(now)
    ledger.figures.keeper.turned(now, 600)

    assert Health(ledger, Tally(), look=lambda: pool).lacks(pool, now + 300) == ""


def test_a_keeper_that_never_turned_is_given_its_grace_too():
    from queuety.process.health import GRACE_S, Health
    from queuety.process.ledger import Ledger
    from queuety.process.metrics import Tally

    health = Health(Ledger(1, counting=True), Tally(), look=lambda: pytest.fail("looked"))

    assert health.lives(time.monotonic() + GRACE_S - 1)[0]
    assert not health.lives(time.monotonic() + GRACE_S + 1)[0]


def test_the_children_do_not_keep_the_socket(database: str, tmp_path: Path):
    import psutil

    with daemon(database, HTTP, "--workers=2", log=tmp_path / "log") as pool:
        at = address(pool)
        pool.ready(2)
        port = int(at.rpartition(":")[2])

        for child in children_of(pool.pid):
            assert not [c for c in child.net_connections() if c.laddr and c.laddr.port == port]
        assert [c for c in psutil.Process(pool.pid).net_connections() if c.laddr and c.laddr.port == port]


def test_an_address_that_is_taken_ends_the_command_before_any_fork(database: str, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with daemon(database, f"--http={at}", log=tmp_path / "log") as pool:
            assert pool.wait() == 2

            assert at in pool.log()
            assert "Traceback" not in pool.log()


@pytest.mark.parametrize(
    "address", ["9191", "localhost", "127.0.0.1:99999", "::1:9191", "a b:1", "127.0.0.1:x"]
)
def test_a_bad_address_is_refused(address: str):
    said = subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", "--app", "x:y", "work", f"--http={address}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert said.returncode == 2
    assert "127.0.0.1:9191" in said.stderr


def test_hostile_clients_delay_neither_deaths_nor_signals(database: str, tmp_path: Path):
    with ExitStack() as stack, daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        host, _, port = at.rpartition(":")
        [worker] = pool.ready()
        for number in range(60):
            sock = stack.enter_context(socket.create_connection((host, int(port))))
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (number % 2 * 7000))

        worker.kill()

        until(lambda: [one for one in pool.able() if one.pid != worker.pid], what="a successor")
        assert get(at, "/livez").status == 200
        assert pool.stop() == 0


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_end_is_counted_by_handler_and_queue(database: str, tmp_path: Path):
    jobs: dict[str, dict[str, Any]] = {
        "ok": {},
        "echo": {"payload": {"value": 1}},
        "fail": {"max_attempts": 2, "backoff": [0.05]},
        "sleep": {"payload": {"seconds": 0.3}, "queue": "slow"},
    }
    for handler, more in jobs.items():
        enqueue(database, handler, **more)
    with daemon(database, HTTP, "--queue=default,slow", "--workers=2", log=tmp_path / "log") as pool:
        at = address(pool)
        until(
            lambda: (
                value(get(at, "/metrics").text, "queuety_job_settlements_total", settlement="buried")
                and value(get(at, "/metrics").text, "queuety_job_settlements_total", queue="slow")
            ),
            what="all ends",
        )
        text = get(at, "/metrics").text

    ends = "queuety_job_settlements_total"
    assert value(text, ends, handler="ok", queue="default", settlement="completed") == 1
    assert value(text, ends, handler="echo", settlement="completed") == 1
    assert value(text, ends, handler="fail", settlement="retried") == 1
    assert value(text, ends, handler="fail", settlement="buried") == 1
    assert value(text, "queuety_job_failures_total", handler="fail", cause="error") == 2
    assert value(text, "queuety_job_run_seconds_count", handler="sleep", queue="slow") == 1
    assert value(text, "queuety_job_run_seconds_bucket", handler="sleep", le="0.25") == 0
    assert value(text, "queuety_job_run_seconds_bucket", handler="sleep", le="+Inf") == 1
    assert value(text, "queuety_job_run_seconds_sum", handler="sleep") >= 0.3


def test_counts_outlive_the_workers_that_made_them(database: str, tmp_path: Path):
    enqueue(database, "ok")
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        done = "queuety_job_settlements_total"
        until(lambda: value(get(at, "/metrics").text, done) == 1, what="a completed job")
        [worker] = pool.ready()
        worker.kill()
        until(lambda: [one for one in pool.able() if one.pid != worker.pid], what="a successor")
        enqueue(database, "ok")

        until(lambda: value(get(at, "/metrics").text, done) == 2, what="two")

        text = get(at, "/metrics").text
        assert (
            value(text, "queuety_worker_exits_total", reason="died")
            + value(text, "queuety_worker_exits_total", reason="early")
            == 1
        )
        assert value(text, "queuety_worker_starts_total") == 2


@pytest.mark.parametrize(("handler", "cause"), [("leave", "lost"), ("sleep", "timed_out")])
def test_a_run_that_its_worker_does_not_survive_is_counted(
    database: str, tmp_path: Path, handler: str, cause: str
):
    payload = {"seconds": 30} if handler == "sleep" else {}
    enqueue(database, handler, payload=payload, max_attempts=1)
    environment = {"QUEUETY_MAX_EXECUTION_TIME": "0.5"}
    with daemon(database, HTTP, log=tmp_path / "log", env=environment) as pool:
        at = address(pool)

        until(
            lambda: value(
                get(at, "/metrics").text, "queuety_job_failures_total", handler=handler, cause=cause
            ),
            what=cause,
        )

        text = get(at, "/metrics").text
        assert value(text, "queuety_job_settlements_total", handler=handler, settlement="buried") == 1
        assert value(text, "queuety_job_run_seconds_count", handler=handler) == 1


def test_a_run_that_ended_before_its_worker_was_killed_is_counted_once(database: str, tmp_path: Path):
    job = enqueue(database, "fail_late", payload={"seconds": 0.5}, max_attempts=1)
    ends = "queuety_job_settlements_total"
    with psycopg.connect(database) as conn, daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: job.state() == "processing", what="a run")
        conn.execute(
            "SELECT FROM queuety.jobs WHERE id = %s FOR UPDATE", [job.id]
        )  # its settlement must wait
        until(lambda: value(get(at, "/metrics").text, ends), what="an end")
        until(lambda: conn.execute(WAITING).fetchone(), what="a settlement that waits")
        pool.workers()[0].kill()
        # Else the server would carry out what the dead has asked for.
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS waiting")
        until(lambda: not conn.execute(WAITING).fetchone(), what="the end of its settlement")
        conn.rollback()
        until(lambda: job.state() == "buried", what="the keeper's settlement")
        time.sleep(1.2)  # what is told is at most a second old
        text = get(at, "/metrics").text

    assert value(text, ends, handler="fail_late") == 1
    assert value(text, "queuety_job_failures_total", handler="fail_late", cause="error") == 1
    assert value(text, "queuety_job_failures_total", handler="fail_late") == 1
    assert value(text, "queuety_job_run_seconds_count", handler="fail_late") == 1


def test_depths_come_from_the_database(database: str, tmp_path: Path):
    enqueue(database, "ok", queue="paused", delay=3600)
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO queuety.queues (name, paused_at) VALUES ('paused', now())")
    enqueue(database, "ok", queue="paused")
    with daemon(database, HTTP, "--queue=default,paused", log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: "queuety_queue_jobs" in get(at, "/metrics").text, what="depths")
        text = get(at, "/metrics").text

    assert value(text, "queuety_queue_jobs", queue="paused", state="due") == 1
    assert value(text, "queuety_queue_jobs", queue="paused", state="later") == 1
    assert value(text, "queuety_queue_jobs", queue="default") == 0
    assert value(text, "queuety_queue_oldest_due_seconds", queue="paused") > 0


def test_all_that_is_told_is_declared_with_its_kind_and_labels(database: str, tmp_path: Path):
    enqueue(database, "ok")
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: value(get(at, "/metrics").text, "queuety_job_settlements_total"), what="a job")
        until(lambda: "queuety_queue_jobs" in get(at, "/metrics").text, what="depths")
        text = get(at, "/metrics").text

    found = samples(text)
    for family in FAMILIES:
        names = (
            [family.name + part for part in ("_bucket", "_sum", "_count")]
            if family.kind == "histogram"
            else [family.name]
        )
        for name in names:
            labels = {frozenset(one.labels) for one in found.pop(name)}
            assert labels == {frozenset((*family.labels, *(["le"] if name.endswith("_bucket") else [])))}, (
                name
            )
        assert f"# TYPE {family.name} {family.kind}\n" in text
        assert text.count(f"# TYPE {family.name} ") == 1
    assert not found


@pytest.mark.skipif(not PROMTOOL, reason="no promtool here")
def test_promtool_finds_nothing_to_say(database: str, tmp_path: Path):
    enqueue(database, "ok")
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        until(lambda: value(get(at, "/metrics").text, "queuety_job_settlements_total"), what="a job")
        until(lambda: "queuety_queue_jobs" in get(at, "/metrics").text, what="depths")

        assert lint(get(at, "/metrics").text) == ""


def test_openmetrics_is_told_to_who_asks_for_it(database: str, tmp_path: Path):
    with daemon(database, HTTP, log=tmp_path / "log") as pool:
        at = address(pool)
        plain, opened = get(at, "/metrics"), get(at, "/metrics", accept=OPEN)

    assert plain.kind.startswith("text/plain; version=0.0.4")
    assert opened.kind.startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("# EOF\n")
    assert "# TYPE queuety_supervisor_loops counter\n" in opened.text
    assert "# EOF" not in plain.text


def test_labels_are_escaped():
    out = Exposition()
    out.family(Family("a", "gauge", "b"))

    out.sample("a", 1, {"x": 'a"b\\c\nd'})

    assert out.text().splitlines()[-1] == 'a{x="a\\"b\\\\c\\nd"} 1'


def test_a_pool_without_http_counts_no_figures(database: str, tmp_path: Path):
    from queuety.process.ledger import Ledger

    assert Ledger(1).pages[0].figures is None
    assert os.environ.get("QUEUETY_HTTP") is None


def test_the_page_of_metrics_lists_what_there_is():
    rows = [
        line
        for line in (ROOT / "docs" / "metrics.md").read_text().splitlines()
        if line.startswith("| `queuety_")
    ]

    assert rows == [
        f"| `{one.name}` | {one.kind} | {one.unit or '-'} | "
        f"{', '.join(f'`{label}`' for label in one.labels) or '-'} | {one.help} |"
        for one in FAMILIES
    ]
