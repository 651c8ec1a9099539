"""Forks: nothing crosses one, and nobody is disturbed by the end of another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests.checks import attempts, ends, remaining, sound, starts, states
from tests.daemon import daemon, until
from tests.servers import own_server

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_WORKER_MIN_AGE": "0"}
DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A server that speaks TLS: (URL over TLS, the server)."""
    if not DEBIAN.is_dir() or not shutil.which("openssl"):
        pytest.skip("needs a PostgreSQL built with TLS, and openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-out", folder / "cert", "-keyout", folder / "key"),
        ],
        check=True,
        capture_output=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUEUETY_PG_BIN", str(DEBIAN))
        with own_server(listen_addresses="127.0.0.1") as server:
            parts = urlsplit(server.url)
            with connect(server.url, name="test") as conn:
                ((place,),) = conn.execute("SHOW data_directory").fetchall()
                owner = os.stat(place)
                for name in ("cert", "key"):
                    target = Path(place, f"server.{name}")
                    shutil.copy(folder / name, target)
                    os.chown(target, owner.st_uid, owner.st_gid)
                    target.chmod(0o600)
                hba = Path(place, "pg_hba.conf")
                hba.write_text(f"{hba.read_text()}\nhostssl all all 127.0.0.1/32 trust\n")
                for name, value in (
                    ("ssl_cert_file", "server.cert"),
                    ("ssl_key_file", "server.key"),
                    ("log_disconnections", "on"),
                    ("ssl", "on"),
                ):
                    conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
                conn.execute("SELECT pg_reload_conf()")
                ((user,),) = conn.execute("SELECT current_user").fetchall()
            port = parse_qs(parts.query).get("port", ["5432"])[0]
            url = f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=require"

            def speaks() -> bool:
                try:
                    with connect(url, name="test"):
                        return True
                except Exception:  # noqa: BLE001 - not yet
                    return False

            until(speaks, 10, "TLS")
            yield url, server


@pytest.fixture
def url(secure):
    with connect(secure[0], name="test") as conn:
        conn.execute("TRUNCATE queuety.jobs, queuety.finished_jobs, queuety.buried_jobs, queuety.job_events")
    return secure[0]


def test_every_process_has_a_session_of_its_own_over_tls(url, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(url)

    with daemon(url, "--workers=8", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(8)
        with connect(url, name="test") as conn:
            rows = conn.execute(
                """
                SELECT s.ssl FROM pg_stat_activity AS a JOIN pg_stat_ssl AS s USING (pid)
                WHERE a.application_name ~ '^queuety (worker|keeper)'
                """
            ).fetchall()
        app.enqueue_many([("chain", {"depth": 1})] * 400)
        until(lambda: states(url) == {"completed": 800}, 40)
        assert pool.stop() == 0

    assert rows == [(True,)] * 9
    assert set(starts(ledger).values()) == {1}
    assert set(attempts(url).values()) == {1}
    for word in ("SSL", "decryption", "protocol", "Traceback"):
        assert word not in pool.log()
    sound(url, ledger, pool)


def test_the_end_of_a_worker_disturbs_nobody_elses_session(secure, url, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(url)
    app.enqueue_many([("ok", {})] * 12)
    logged = len(secure[1].log())

    with daemon(
        url, "--workers=2", "--max-jobs=1", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK
    ) as pool:
        keeper = pool.keeper().pid
        until(lambda: states(url) == {"completed": 12}, 60)
        assert pool.keeper().pid == keeper
        assert pool.stop() == 0

    assert "lost the database" not in pool.log()
    sound(url, ledger, pool)
    said = secure[1].log()[logged:]
    assert "unexpected EOF" not in said
    assert "could not receive data" not in said


# ── other threads, other start methods ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["imported in each worker", "preloaded"])
def test_a_thread_that_the_application_starts_at_import_hangs_no_worker(database, tmp_path, preload):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * 12)

    with daemon(
        database,
        "--workers=4",
        "--max-jobs=1",
        *preload,
        app="tests.apps.threads:app",
        ledger=ledger,
        log=tmp_path / "log",
        env=QUICK,
    ) as pool:
        until(lambda: states(database) == {"completed": 12}, 60)
        assert pool.stop() == 0

    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_start_method_of_the_application_is_no_matter_of_the_pools(database, tmp_path, method):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    env = {**QUICK, "QUEUETY_TEST_START_METHOD": method}

    with daemon(
        database,
        "--workers=2",
        app="tests.apps.threads:app",
        ledger=ledger,
        log=tmp_path / "log",
        env=env,
    ) as pool:
        jobs = app.enqueue_many([("ok", {})] * 20)
        for job in jobs:
            assert job.wait(10).attempts == 1
        assert app.enqueue("in_pool").result(20) == [method, 0, 1, 4]
        assert pool.stop() == 0

    sound(database, ledger, pool)


# ── children of handlers ──────────────────────────────────────────────────────────────────────────


def test_a_pool_that_is_process_1_reaps_what_handlers_leave_behind(database, tmp_path):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    jobs = app.enqueue_many([("double_fork", {"seconds": 1})] * 50)

    with daemon(
        database,
        "--workers=2",
        app=ROUGH,
        ledger=ledger,
        log=tmp_path / "log",
        env={**QUICK, "QUEUETY_WORKER_MAX_JOBS": "0"},
        prefix=unshare,
    ) as pool:
        inside = until(lambda: psutil.Process(pool.pid).children(), 10)[0]
        until(lambda: ends(ledger).total() == 50, 30)
        until(lambda: states(database) == {"completed": 50})
        time.sleep(1.5)  # until the helpers have ended
        family = psutil.Process(inside.pid).children(recursive=True)
        zombies = [one for one in family if one.status() == psutil.STATUS_ZOMBIE]
        workers = [one for one in family if "queuety: worker" in " ".join(one.cmdline())]
        inside.terminate()
        code = pool.wait(10)

    assert zombies == []
    assert len(workers) == 2
    assert len(family) == 3
    assert code == 0
    assert {job.job().attempts for job in jobs} == {1}
    sound(database, ledger, pool)


@pytest.mark.parametrize("handler", ["fork_and_return", "fork_and_raise"])
def test_a_child_that_comes_back_from_a_handler_is_no_second_worker(database, tmp_path, handler):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        worker = pool.ready(1)[0]
        job = app.enqueue(handler)
        ended = job.wait(10)
        assert remaining(worker.children(), 5) == []
        after = app.enqueue_many([("ok", {})] * 20)
        assert {one.wait(10).attempts for one in after} == {1}
        assert pool.stop() == 0

    assert (ended.state, ended.attempts) == ("completed", 1)
    assert ended.result in (None, worker.pid)
    sound(database, ledger, pool)


def test_a_process_that_a_handler_starts_can_be_asked_to_end(database, tmp_path):
    with daemon(database, app=ROUGH, ledger=tmp_path / "ledger", log=tmp_path / "log", env=QUICK) as pool:
        assert Queuety(database).enqueue("terminate_child").result(15) == -15
        assert pool.stop() == 0
