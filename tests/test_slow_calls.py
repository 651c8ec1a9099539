"""The page on slow calls, from start to finish: its files are run as they stand there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from httpx_sse import connect_sse

from queuety import Queuety
from tests import ROOT
from tests.daemon import daemon, until
from tests.documents import blocks, document

PAGE = document("slow-calls.md")


def shown(section: str) -> str:
    [block] = [one for one in blocks(PAGE) if one.section == section and one.language == "python"]
    return block.text


@pytest.fixture
def site(database, tmp_path: Path) -> Iterator[httpx.Client]:
    """The page's application under uvicorn, with a pool beside it."""
    (tmp_path / "search.py").write_text(shown("The job"))
    (tmp_path / "web.py").write_text(shown("The application"))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:api", f"--fd={listener.fileno()}", "--log-level=warning"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "QUEUETY_DATABASE_URL": database},
            pass_fds=[listener.fileno()],
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with (
            daemon(
                database,
                "--queue=search",
                "--workers=2",
                app="search:queue",
                log=tmp_path / "log",
                env={"PYTHONPATH": path},
            ) as pool,
            httpx.Client(base_url=address, timeout=30) as client,
        ):
            pool.ready(2)
            yield client
    finally:
        server.terminate()
        server.wait(20)


def start(site: httpx.Client, question: str = "tea", **headers: str) -> str:
    answer = site.post("/searches", json={"question": question}, headers=headers)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/searches/{answer.json()['jobId']}"
    return str(answer.json()["jobId"])


def follow(site: httpx.Client, job: str, after: str | None = None, most: int = 1000) -> list[dict[str, Any]]:
    headers = {"Last-Event-ID": after} if after else {}
    found = []
    with connect_sse(site, "GET", f"/searches/{job}/events", headers=headers) as source:
        for sent in source.iter_sse():
            event = json.loads(sent.data)
            assert (sent.id, sent.event) == (event["event_id"], event["type"])
            found.append(event)
            if len(found) == most:
                break
    return found


def test_a_search_is_started_followed_and_ends_once(site):
    job = start(site)

    events = follow(site, job)

    types = [event["type"] for event in events]
    assert types[0] == "job.started"
    assert types[-1] == "job.completed"
    assert sum(kind in ("job.completed", "job.failed", "job.canceled") for kind in types) == 1
    assert next(event["payload"]["found"] for event in events if event["type"] == "job.partial") == [
        "tea in the library"
    ]
    [retry] = [event["payload"] for event in events if "retry" in event["payload"]]
    assert (retry["retry"], retry["nextAttemptInMs"]) == (1, 1000)
    assert types.count("job.started") == 1
    assert events[-1]["payload"]["result"]["found"][-1] == "tea in the news"
    look = site.get(f"/searches/{job}").json()
    assert (look["state"], look["attempts"]) == ("completed", 2)


def test_a_viewer_that_reconnects_and_one_that_comes_late_miss_nothing(site):
    job = start(site)
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["type"] != "job.completed":
        seen += follow(site, job, after=seen[-1]["event_id"] if seen else None, most=2)

    assert follow(site, job) == seen
    assert len({event["event_id"] for event in seen}) == len(seen)


def test_who_has_seen_the_end_is_told_that_there_is_no_more(site):
    job = start(site)
    last = follow(site, job)[-1]["event_id"]

    assert site.get(f"/searches/{job}/events", headers={"Last-Event-ID": last}).status_code == 204


def test_nonsense_is_refused_and_no_error_of_the_server(site):
    job = start(site)

    assert site.get(f"/searches/{job}/events", headers={"Last-Event-ID": "zzz"}).status_code == 400
    for path in ("/searches/99999999999999999999", "/searches/99999999999999999999/events", "/searches/0"):
        assert site.get(path).status_code == 422
    long = {"Idempotency-Key": "k" * 300}
    assert site.post("/searches", json={"question": "tea"}, headers=long).status_code == 422


def test_a_search_is_cancelled_while_it_runs(site):
    job = start(site)
    until(lambda: site.get(f"/searches/{job}").json()["state"] == "processing")

    assert site.delete(f"/searches/{job}").status_code == 202

    assert follow(site, job)[-1]["type"] == "job.canceled"
    assert site.delete("/searches/999999").status_code == 404
    assert site.get("/searches/999999/events").status_code == 404


def test_a_request_sent_twice_under_one_key_starts_one_job(site):
    key = {"Idempotency-Key": "5f2a"}

    assert start(site, **key) == start(site, **key) != start(site, **{"Idempotency-Key": "5f2b"})


def test_a_charge_that_is_run_twice_is_made_once(database, tmp_path):
    (tmp_path / "charges.py").write_text(shown("Why the handler must be idempotent"))
    app = Queuety(database)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE charges (key text PRIMARY KEY, cents int)")
    app.enqueue("charge", {"order": 7, "cents": 100})
    app.enqueue("charge", {"order": 7, "cents": 100})
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    with daemon(database, app="charges:queue", command="flush", log=tmp_path / "log", env=env) as pool:
        assert pool.wait(60) == 0, pool.log()

    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT key, cents FROM charges").fetchall() == [("charge-order-7", 100)]
    assert [job.state for job in app.jobs()] == ["completed"] * 2
    app.close()
