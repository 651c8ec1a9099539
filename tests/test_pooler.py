"""Behind a real PgBouncer in transaction mode, where no session is anybody's own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests.daemon import daemon, read_ledger, until
from tests.test_limits_hold import most_at_once, most_within, spans

APP = "tests.apps.data:app"
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooled(database: str) -> Iterator[str]:
    """The test's database behind a pool of five server sessions."""
    assert PROGRAM is not None
    parts = urlsplit(database)
    query = parse_qs(parts.query)
    folder, name = query["host"][0], parts.path.lstrip("/")
    # As the server, it refuses to be root; and peer authentication asks who it is.
    owner = Path(folder).stat().st_uid if os.getuid() == 0 else os.getuid()
    # Not pytest's own folder, which that user may not enter.
    own = Path(tempfile.mkdtemp(prefix="queuety-pooler-"))
    port = free_port()
    (own / "users.txt").write_text(f'"{parts.username}" ""\n')
    (own / "pgbouncer.ini").write_text(
        f"""
        [databases]
        {name} = host={folder} port={query.get("port", ["5432"])[0]} dbname={name} user={parts.username}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = any
        auth_file = {own}/users.txt
        pool_mode = transaction
        default_pool_size = 5
        max_client_conn = 200
        """.replace("\n        ", "\n")
    )
    for path in (own, *own.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    process = subprocess.Popen(
        [PROGRAM, str(own / "pgbouncer.ini")],
        stdout=subprocess.DEVNULL,
        stderr=(own / "log").open("wb"),
        **({"user": pwd.getpwuid(owner).pw_name} if os.getuid() == 0 else {}),  # type: ignore[call-overload]
    )
    url = f"postgresql://{parts.username}@127.0.0.1:{port}/{name}"
    try:
        until(lambda: answers(url), 10, f"pgbouncer: {(own / 'log').read_text()}")
        yield url
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(own)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def test_a_pool_works_behind_a_transaction_pooler(database, pooled, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(pooled)
    app.enqueue_many([("ok", {})] * 1900)
    one_by_one = [app.enqueue("echo", {"value": number}) for number in range(100)]
    failing = [app.enqueue("fail_until", {"attempt": 2}, backoff=[0.1]) for _ in range(10)]

    with daemon(pooled, "--workers=8", app=APP, ledger=ledger, log=tmp_path / "log") as pool:
        results = [job.result(60) for job in one_by_one]
        retried = [job.result(30) for job in failing]
        with connect(database) as conn:
            until(lambda: conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,), 60)
            states: dict[str, int] = dict(
                conn.execute("SELECT state::text, count(*) FROM queuety.all_jobs GROUP BY 1").fetchall()
            )
        code = pool.stop()

    assert results == list(range(100))
    assert retried == [2] * 10
    assert states == {"completed": 2010}
    assert len([one for one in read_ledger(ledger) if one.what == "start"]) == 2020
    assert code == 0
    assert "ERROR" not in pool.log()
    assert "prepared statement" not in pool.log()


def test_verbs_and_pauses_work_behind_a_transaction_pooler(pooled, tmp_path):
    app = Queuety(pooled)

    with daemon(
        pooled, "--workers=2", "--queue=default,other", "--sleep=0.3", app=APP, log=tmp_path / "log"
    ) as pool:
        pool.ready(2)
        app.pause("other")
        waiting = app.enqueue("ok", queue="other")
        running = app.enqueue("sleep", {"seconds": 30})
        until(lambda: running.state() == "processing")
        running.cancel()
        cancelled = running.wait(10)
        buried = app.enqueue("fail", max_attempts=1).wait(10)
        app.retry(buried.id)
        until(lambda: app.find(buried.id).state == "buried" and len(app.events(buried.id)) > 2)
        time.sleep(0.5)
        held = waiting.state()
        app.resume("other")
        ended = waiting.wait(5)

    assert (cancelled.state, held, ended.state) == ("cancelled", "pending", "completed")


def test_the_transaction_of_a_job_works_behind_a_transaction_pooler(database, pooled, tmp_path):
    with connect(database) as conn:
        conn.execute("CREATE TABLE effects (key text, attempt int)")
        with daemon(pooled, "--sleep=0.3", app=APP, log=tmp_path / "log"):
            job = Queuety(pooled).enqueue("effect", {"key": "k", "then": "raise inside"}, backoff=[0.1])
            ended = job.wait(20)
        rows = conn.execute("SELECT key, attempt FROM effects").fetchall()

    assert (ended.state, ended.attempts) == ("completed", 2)
    assert rows == [("k", 2)]


def test_limits_hold_behind_a_transaction_pooler(database, pooled, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(pooled)
    for _ in range(60):
        app.enqueue("work", {"seconds": 0.02}, concurrency_group="three", concurrency_limit=3)
    rated = [app.enqueue("twice", rate_limit=(2, 1), rate_key="twice") for _ in range(5)]

    with daemon(
        pooled, "--workers=8", app="tests.apps.limited:app", ledger=ledger, log=tmp_path / "log"
    ) as pool:
        with connect(database) as conn:
            until(lambda: conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,), 60)
        assert pool.stop() == 0

    runs = [run for run in spans(ledger) if run[1] - run[0] > 0.01]
    starts = sorted(e.at for e in read_ledger(ledger) if e.what == "start" and e.job in {j.id for j in rated})
    assert len(runs) == 60
    assert most_at_once(runs) <= 3
    assert most_within(starts, 1.0) <= 2
