"""What follows a job in earnest: npm's eventsource, a real Chromium, and applications that mount the API."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queuety import Queuety
from queuety.web import create_app
from tests import ROOT
from tests.daemon import daemon, until
from tests.web import Json

APP = "tests.apps.streaming:app"
VIEWERS = Path(__file__).parent / "viewers"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STAY_MS = 2500  # longer than a client waits before it comes back


@pytest.fixture(scope="module")
def app(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queuety]:
    """An application whose jobs are run."""
    made = Queuety(shared)
    with daemon(shared, "--workers=2", app=APP, log=tmp_path_factory.mktemp("pool") / "log"):
        yield made
    made.close()


@contextmanager
def serve(made: ASGIApp) -> Iterator[str]:
    """The address of an ASGI application under plain uvicorn, in a thread."""
    config = uvicorn.Config(made, port=0, log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, 20, "it listens")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


class Cutting:
    """Cuts every stream after a few chunks, as a bad network does, and counts how often one is asked for."""

    def __init__(self, inner: ASGIApp, chunks: int) -> None:
        self.inner = inner
        self.chunks = chunks
        self.asked: list[tuple[str, int]] = []  # Last-Event-ID and status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await self.inner(scope, receive, send)
            return
        left = self.chunks
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}

        async def counted(message: Message) -> None:
            nonlocal left
            if message["type"] == "http.response.start":
                self.asked.append((headers.get("last-event-id", ""), message["status"]))
            elif message.get("body"):
                left -= 1
                if left < 0:
                    raise OSError("cut")
            await send(message)

        try:
            await self.inner(scope, receive, counted)
        except OSError:
            return  # without the end of the body: the server closes the connection


def check_whole(told: Json, count: int) -> None:
    types = [event["type"] for event in told["events"]]
    assert types == ["job.started", *["job.partial"] * count, "job.completed"]
    assert [event["data"]["payload"]["n"] for event in told["events"][1:-1]] == list(range(count))
    assert [event["id"] for event in told["events"]] == [
        event["data"]["event_id"] for event in told["events"]
    ]


def check_quiet(cutting: Cutting, told: Json) -> None:
    """It came back after each cut; after the final event once, was told that nothing more comes, and stayed away."""
    final = told["events"][-1]["id"]
    assert cutting.asked[0] == ("", 200)
    assert len([last for last, status in cutting.asked if status == 200]) > 1
    assert [status for last, status in cutting.asked if last == final] == [204]
    assert told["state"] == 2, "it is not closed"


# ── npm's eventsource ─────────────────────────────────────────────────────────────────────────────────────────


def install() -> tuple[Path, str]:
    """A folder with what package-lock.json names, and why it cannot be had, or nothing."""
    there = VIEWERS / "node_modules"
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return there, "there is no node with npm here"
    if there.exists():
        return there, ""
    # Beside its place and then moved: of two test runs at once neither sees half of it.
    beside = Path(tempfile.mkdtemp(prefix="node_modules.", dir=VIEWERS))
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(VIEWERS / name, beside)
        said = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"],
            cwd=beside, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        if said.returncode:
            return there, f"npm cannot install eventsource: {said.stderr.strip()[-300:]}"
        if not there.exists():
            os.rename(beside / "node_modules", there)
    except (OSError, subprocess.TimeoutExpired) as error:
        return there, f"npm cannot install eventsource: {error}"
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return there, ""


def test_eventsource_comes_back_after_cuts_without_gap_or_double_and_stays_away_after_the_end(app: Queuety):
    _, reason = install()
    if reason:
        pytest.skip(reason)
    cutting = Cutting(create_app(app, no_auth=True), chunks=7)
    job_id = app.enqueue("tell", {"count": 8, "pause": 0.1}).id

    with serve(cutting) as url:
        done = subprocess.run(
            ["node", str(VIEWERS / "follow.mjs"), f"{url}/api/jobs/{job_id}/events", str(STAY_MS)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    check_whole(told, 8)
    check_quiet(cutting, told)


# ── Chromium ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
def test_a_browser_comes_back_after_cuts_without_gap_or_double_and_stays_away_after_the_end(
    app: Queuety, tmp_path: Path
):
    reports: list[Json] = []

    async def report(request: Request) -> Response:
        reports.append(await request.json())
        return Response(status_code=204)

    cutting = Cutting(create_app(app, no_auth=True), chunks=7)
    page = FileResponse(VIEWERS / "page.html")
    site = Starlette(
        routes=[
            Route("/", lambda _: page),
            Route("/report", report, methods=["POST"]),
            Mount("/queue", cutting),
        ]
    )
    job_id = app.enqueue("tell", {"count": 8, "pause": 0.1}).id
    assert CHROMIUM is not None

    with serve(site) as url:
        browser = subprocess.Popen(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run",
                f"--user-data-dir={tmp_path / 'profile'}", f"{url}/#/queue/api/jobs/{job_id}/events|{STAY_MS}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: reports, 60, "the page reports")
        finally:
            os.killpg(browser.pid, 9)
            browser.wait(10)

    check_whole(reports[0], 8)
    check_quiet(cutting, reports[0])


# ── mounted elsewhere ─────────────────────────────────────────────────────────────────────────────────────────


def check_mounted(site: ASGIApp, prefix: str) -> None:
    """Start, follow and find a job under a prefix, with the application's own pages beside it."""
    with serve(site) as url, httpx.Client(base_url=url, timeout=20) as http:
        started = http.post(f"{prefix}/api/jobs", json={"handler": "tell", "payload": {"count": 2}})
        assert started.status_code == 202, started.text
        here = started.headers["location"]
        told = http.get(started.json()["events_url"]).text
        found = http.get(here)
        described = http.get(f"{prefix}/openapi.json").json()
        nowhere = http.get(f"{prefix}/api/nothing")
        own = http.get("/own")

    assert here.startswith(f"{prefix}/api/jobs/")
    assert told.count("event: ") == 4
    assert "event: job.completed" in told
    assert found.json()["status"] == "completed"
    assert described["servers"] == [{"url": prefix}]
    assert nowhere.headers["content-type"] == "application/problem+json"
    assert (own.status_code, own.text) == (200, "own")


def test_it_works_under_fastapi_beside_the_routes_of_the_application(app: Queuety):
    site = FastAPI()
    site.add_api_route("/own", lambda: Response("own"))
    site.mount("/queue", create_app(app, no_auth=True))

    check_mounted(site, "/queue")


def test_it_works_under_starlette_at_any_depth(app: Queuety):
    inner = Mount("/inner", create_app(app, no_auth=True))

    check_mounted(
        Starlette(routes=[Route("/own", lambda _: Response("own")), Mount("/outer", routes=[inner])]),
        "/outer/inner",
    )


def test_it_works_beside_django(app: Queuety):
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"], ROOT_URLCONF=(path("own", lambda _: HttpResponse("own")),), SECRET_KEY="test"
        )
        django.setup()
    site = Starlette(
        routes=[Mount("/queue", create_app(app, no_auth=True)), Mount("/", get_asgi_application())]
    )

    check_mounted(site, "/queue")


def test_a_stop_of_the_mounting_server_ends_open_streams(app: Queuety, shared: str, tmp_path: Path):
    job_id = app.enqueue("tell", {"count": 1}, delay=600).id
    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "tests.apps.mounted:site", "--port=0"],
            cwd=ROOT, stdout=output, stderr=output, env={**os.environ, "QUEUETY_DATABASE_URL": shared},
        )  # fmt: skip
    try:
        url = until(lambda: re.search(r"running on (http://\S+)", log.read_text()), 30, "it listens")[1]
        with httpx.stream("GET", f"{url}/queue/api/jobs/{job_id}/events", timeout=30) as answer:
            first = next(answer.iter_lines())
            server.terminate()
            server.wait(15)
    finally:
        server.kill()

    assert first.startswith("retry: ")
    assert "Traceback" not in log.read_text()


def test_the_threads_of_the_application_are_not_used_up(app: Queuety):
    """Streams hold neither a thread nor a connection each."""
    job_id = app.enqueue("tell", {"count": 1}, delay=600).id
    made: Any = create_app(app, no_auth=True)

    with serve(made) as url:
        before = threading.active_count()
        with httpx.Client(base_url=url, timeout=20) as http:
            open_ones = [http.stream("GET", f"/api/jobs/{job_id}/events") for _ in range(30)]
            for one in open_ones:
                one.__enter__()
            with app.connection() as conn:
                (connections,) = conn.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND application_name LIKE 'queuety%' AND pid <> pg_backend_pid()"
                ).fetchone() or (0,)
            threads = threading.active_count() - before
            for one in open_ones:
                one.__exit__(None, None, None)

    assert threads <= 10
    assert connections <= 20
