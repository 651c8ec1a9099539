"""Who may use the HTTP API: closed unless loopback, tokens, roles, foreign pages, and what keeps requests small."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from queuety import Queuety
from queuety.errors import UsageError
from queuety.store import tokens as stored
from queuety.web import create_app, tokens
from queuety.web.access import Bearers, loopback
from queuety.web.threads import Threads
from queuety.web.tokens import Role
from tests import ROOT
from tests.daemon import until
from tests.web import client, web

ORDER = {"handler": "add", "payload": {}}


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    made = Queuety(database)
    yield made
    made.close()


def token(app: Queuety, name: str, role: str) -> dict[str, str]:
    secret, made = tokens.make(name, role)
    with app.connection() as conn:
        stored.add(conn, name, role, made.digest)
    return {"Authorization": f"Bearer {secret}"}


def cli(url: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, "QUEUETY_DATABASE_URL": url, **env}, cwd=ROOT,
    )  # fmt: skip


# ── tokens and roles ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given", [None, "", "Basic eDp5", "Bearer", "Bearer wrong", "Bearer qty_" + "x" * 43, "qty_x"]
)
def test_without_a_known_token_nothing_is_answered(app: Queuety, given: str | None):
    token(app, "somebody", "admin")
    with client(app, tokens=True) as http:
        for path in ("/api/jobs", "/api/jobs/1", "/api/jobs/1/events", "/metrics", "/openapi.json"):
            answer = http.get(path, headers={} if given is None else {"Authorization": given})

            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")


WRITES = [
    ("operator", "/api/jobs", 202),
    ("operator", "/api/jobs/999/cancel", 404),
    ("operator", "/api/jobs/999/retry", 404),
    ("operator", "/api/schedules/none/run", 404),
    ("admin", "/api/queues/mail/pause", 200),
    ("admin", "/api/queues/mail/resume", 200),
    ("admin", "/api/schedules/none/pause", 404),
    ("admin", "/api/schedules/none/resume", 404),
]


@pytest.mark.parametrize(("needed", "path", "status"), WRITES)
def test_each_role_may_what_it_may_and_no_more(app: Queuety, needed: str, path: str, status: int):
    roles = ["viewer", "operator", "admin"]
    with client(app, tokens=True) as http:
        for role in roles:
            answer = http.post(
                path, json=ORDER if path == "/api/jobs" else None, headers=token(app, role, role)
            )

            allowed = roles.index(role) >= roles.index(needed)
            assert answer.status_code == (status if allowed else 403), (role, answer.text)
            # A token made since the last look is known after the next one.
            http.app.routes[0].app._service.access._read_at = float("-inf")  # type: ignore[attr-defined]


def test_a_removed_token_is_good_for_nothing_within_seconds(app: Queuety):
    headers = token(app, "gone", "viewer")
    with client(app, tokens=True) as http:
        assert http.get("/api/jobs", headers=headers).status_code == 200
        with app.connection() as conn:
            stored.remove(conn, "gone")

        assert until(lambda: http.get("/api/jobs", headers=headers).status_code == 401, 15)


def test_a_removed_token_keeps_no_stream(app: Queuety, database: str, tmp_path: Path):
    import httpx

    gone, stays = token(app, "gone", "viewer"), token(app, "stays", "viewer")
    path = f"/api/jobs/{app.enqueue('add', {}, delay=600).id}/events"
    with (
        web(database, "--auth", log=tmp_path / "web") as made,
        httpx.stream("GET", made.url + path, headers=stays, timeout=20) as other,
        httpx.stream("GET", made.url + path, headers=gone, timeout=20) as mine,
    ):
        lines = other.iter_lines()
        assert next(lines).startswith("retry: ")
        with app.connection() as conn:
            stored.remove(conn, "gone")

        told = [line for line in mine.iter_lines() if line]  # the stream ends, and in good order
        back = httpx.get(made.url + path, headers=gone)
        app.cancel(int(path.split("/")[3]))
        rest = list(lines)

    assert all(line.startswith(("retry: ", ":")) for line in told)
    assert back.status_code == 401
    assert "event: job.canceled" in rest


def test_a_stream_outlasts_a_database_that_cannot_be_asked_about_tokens(app: Queuety):
    import anyio

    headers = token(app, "kept", "viewer")
    scope = {"type": "http", "headers": [(b"authorization", headers["Authorization"].encode())]}

    async def ask() -> bool:
        bearers = Bearers(app, Threads(2))
        await bearers.check(Request(scope), Role.VIEWER)
        bearers._read_at = bearers._tried_at = float("-inf")
        app.close()
        bearers._app = Queuety("postgresql://nobody@127.0.0.1:1/none")
        return await bearers.still(Request(scope), Role.VIEWER)

    assert anyio.run(ask)


def test_tokens_of_the_setting_are_known_from_text_and_file(database: str, tmp_path: Path):
    one, first = tokens.make("one", "viewer")
    two, second = tokens.make("two", "operator")
    (tmp_path / "tokens").write_text(f"# who\n{first.entry()}\n\n{second.entry()}\n")

    for setting in (f"{first.entry()}, {second.entry()}", f"@{tmp_path / 'tokens'}"):
        app = Queuety(database, web_tokens=setting)
        with client(app, tokens=True) as http:
            for secret in (one, two):
                headers = {"Authorization": f"Bearer {secret}"}
                assert http.get("/api/queues", headers=headers).status_code == 200
        app.close()


@pytest.mark.parametrize(
    "entry", ["x", "a:viewer", "a:root:sha256:" + "0" * 64, "a:viewer:sha256:12", "@/nowhere"]
)
def test_an_entry_that_is_no_token_is_refused_and_not_repeated(database: str, entry: str):
    with pytest.raises(UsageError) as caught:
        create_app(Queuety(database, web_tokens=f"geheim {entry}" if entry == "x" else entry), tokens=True)

    assert "geheim" not in str(caught.value)


def test_a_token_is_shown_once_and_kept_as_a_digest(database: str):
    added = cli(database, "web", "token", "add", "shop", "--role=operator")
    listed = cli(database, "web", "token", "list")
    again = cli(database, "web", "token", "add", "shop")
    secret = added.stdout.strip()

    assert added.returncode == 0
    assert re.fullmatch(r"qty_[\w-]{43}", secret)
    assert secret not in added.stderr + listed.stdout + listed.stderr
    assert "operator" in listed.stdout
    assert again.returncode == 6
    dump = Queuety(database)
    with dump.connection() as conn:
        (row,) = conn.execute("SELECT t::text FROM queuety.http_tokens AS t").fetchall()
    dump.close()
    assert secret not in row[0]
    assert secret.removeprefix("qty_") not in row[0]
    assert cli(database, "web", "token", "remove", "shop").returncode == 0
    assert cli(database, "web", "token", "remove", "shop").returncode == 5


def test_a_token_is_never_logged(app: Queuety, caplog: pytest.LogCaptureFixture):
    headers = token(app, "quiet", "viewer")
    with caplog.at_level(logging.DEBUG), client(app, tokens=True) as http:
        http.get("/api/jobs", headers=headers)
        http.post("/api/jobs", json=ORDER, headers=headers)

    # httpx writes what it sends; what is ours is what is looked at.
    ours = [one.getMessage() for one in caplog.records if one.name.startswith(("queuety", "uvicorn"))]
    assert not any(headers["Authorization"].split()[1] in text for text in ours)


def test_keys_of_different_tokens_are_different_keys(app: Queuety):
    first, second = token(app, "a", "operator"), token(app, "b", "operator")
    with client(app, tokens=True) as http:
        ids = [
            http.post("/api/jobs", json=ORDER, headers={**headers, "Idempotency-Key": "same"}).json()["id"]
            for headers in (first, second, first)
        ]

    assert ids[0] == ids[2] != ids[1]


# ── who mounts it decides ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_mounting_application_is_asked_with_the_role_that_is_needed(app: Queuety, asynchronous: bool):
    asked: list[str] = []

    def decide(request: Request, role: str) -> str | None:
        asked.append(role)
        return request.headers.get("x-user") if role == "viewer" else None

    async def later(request: Request, role: str) -> str | None:
        return decide(request, role)

    with client(app, authorize=later if asynchronous else decide) as http:
        known = http.get("/api/jobs", headers={"X-User": "kim"})
        unknown = http.get("/api/jobs")
        write = http.post("/api/jobs", json=ORDER, headers={"X-User": "kim"})

    assert [known.status_code, unknown.status_code, write.status_code] == [200, 403, 403]
    assert asked == ["viewer", "viewer", "operator"]


def test_an_application_that_does_not_say_who_may_is_not_made(app: Queuety):
    with pytest.raises(UsageError, match="nobody says who may"):
        create_app(app)
    with pytest.raises(UsageError, match="several"):
        create_app(app, tokens=True, no_auth=True)


# ── closed unless loopback ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "closed"),
    [("127.0.0.1", False), ("127.8.9.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True),
     ("::", True), ("192.0.2.1", True), ("example.org", True), ("", True), ("localhost.example.org", True)],
)  # fmt: skip
def test_only_loopback_is_open(host: str, closed: bool):
    assert loopback(host) is not closed


def test_another_address_without_tokens_refuses_to_start(database: str):
    done = cli(database, "web", "--host=0.0.0.0", "--port=0")

    assert done.returncode == 2
    assert "queuety web token add" in done.stderr
    assert "--insecure-no-auth" in done.stderr


def test_loopback_asks_for_tokens_where_it_is_told_to(database: str):
    done = cli(database, "web", "--auth", "--port=0")

    assert done.returncode == 2
    assert "there are none" in done.stderr


def test_another_address_with_a_token_asks_for_it(app: Queuety, database: str, tmp_path: Path):
    headers = token(app, "remote", "viewer")
    with web(database, "--host=0.0.0.0", log=tmp_path / "web") as made:
        url = made.url.replace("0.0.0.0", "127.0.0.1")
        import httpx

        assert httpx.get(f"{url}/api/jobs").status_code == 401
        assert httpx.get(f"{url}/api/jobs", headers=headers).status_code == 200
        assert headers["Authorization"].split()[1] not in made.process.log()


def test_what_comes_through_a_proxy_is_not_taken_for_this_machine(database: str, tmp_path: Path):
    with web(database, log=tmp_path / "web") as made, made.client() as http:
        through = http.get("/api/jobs", headers={"X-Forwarded-For": "203.0.113.9"})

        assert through.status_code == 403
        assert "--auth" in through.text
        assert http.get("/api/jobs").status_code == 200


def test_the_extra_is_named_if_it_is_missing(app: Queuety, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queuety.web.find_spec", lambda name: None)

    with pytest.raises(UsageError, match="starlette") as caught:
        create_app(app, no_auth=True)

    assert 'pip install "queuety[web]"' in caught.value.hint


# ── foreign pages ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def http(app: Queuety) -> Iterator[TestClient]:
    with client(app, hosts=["queue.example.org"]) as made:
        yield made


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1"}, True),
        ({"Origin": "https://127.0.0.1"}, True),
        ({"Origin": "https://queue.example.org"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://proxied.example"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://127.0.0.1:9999"}, False),
        ({"Origin": "http://127.0.0.1.evil.example"}, False),
        ({"Origin": "http://[::"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"}, False),
    ],
)
def test_only_pages_of_the_same_origin_may_write(http: TestClient, headers: dict[str, str], fine: bool):
    answer = http.post("/api/jobs", json=ORDER, headers=headers)

    assert answer.status_code == (202 if fine else 403), answer.text


def test_a_foreign_page_opens_no_stream(http: TestClient):
    job_id = http.post("/api/jobs", json=ORDER).json()["id"]

    answer = http.get(f"/api/jobs/{job_id}/events", headers={"Sec-Fetch-Site": "cross-site"})

    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("host", "fine"),
    [("127.0.0.1:8811", True), ("localhost:8811", True), ("[::1]:8811", True), ("queue.example.org", True),
     ("QUEUE.example.org.:443", True), ("192.0.2.7", True), ("evil.example", False), ("localhost.evil.example", False),
     ("127.0.0.1.evil.example:8811", False)],
)  # fmt: skip
def test_a_name_that_somebody_else_gave_this_address_is_not_answered(http: TestClient, host: str, fine: bool):
    answer = http.get("/api/jobs", headers={"Host": host})

    assert answer.status_code == (200 if fine else 421)


# ── bounds of the connection ──────────────────────────────────────────────────────────────────────────────────


def test_a_head_that_is_too_large_is_refused(database: str, tmp_path: Path):
    with web(database, log=tmp_path / "web") as made, made.client() as http:
        answer = http.get("/api/jobs", headers={"X-Large": "x" * 60_000})

        assert answer.status_code == 431
        assert http.get("/api/jobs").status_code == 200


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("told", [True, False])
def test_who_sends_far_too_much_reads_the_refusal(database: str, tmp_path: Path, kind: str, told: bool):
    parts = [b"x" * 2**20] * 40

    with web(database, log=tmp_path / "web") as made, made.client() as http:
        headers = {"Content-Type": kind, **({"Content-Length": str(40 * 2**20)} if told else {})}
        answer = http.post("/api/jobs", content=iter(parts), headers=headers)
        foreign = http.post(
            "/api/jobs", content=iter(parts), headers={**headers, "Origin": "http://evil.example"}
        )

    assert (answer.status_code, foreign.status_code) == (413, 403)


def test_who_waits_to_be_asked_for_his_body_is_refused_at_once(database: str, tmp_path: Path):
    with web(database, log=tmp_path / "web") as made:
        port = int(made.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as waiting:
            waiting.sendall(
                b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 50000000\r\nExpect: 100-continue\r\n\r\n"
            )

            assert waiting.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.soak
@pytest.mark.parametrize("sent", [b"", b"GET /api/jobs HTTP/1.1\r\nHost: 127"])
def test_a_head_that_does_not_come_holds_no_connection(database: str, tmp_path: Path, sent: bytes):
    with web(database, log=tmp_path / "web") as made:
        port = int(made.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=40) as slow:
            slow.sendall(sent)
            began = time.monotonic()

            assert slow.recv(1000) == b""
            assert time.monotonic() - began > 5


def test_under_a_path_that_a_proxy_takes_away_links_are_whole(database: str, tmp_path: Path):
    with web(database, "--root-path=/queue", log=tmp_path / "web") as made, made.client() as http:
        started = http.post("/api/jobs", json={"handler": "somebody_elses"})

        assert started.headers["location"].startswith("/queue/api/jobs/")
        assert http.get(f"/api/jobs/{started.json()['id']}").status_code == 200
        assert http.get("/openapi.json").json()["servers"] == [{"url": "/queue"}]
