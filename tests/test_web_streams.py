"""Server-sent events: each viewer gets the same events with the same ids, without gap or double, until the end."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from queuety import Queuety
from tests.apps.streaming import app as handlers
from tests.daemon import daemon, until
from tests.web import Json, Web, web

APP = "tests.apps.streaming:app"
FINAL = ("job.completed", "job.failed", "job.canceled")


@pytest.fixture(scope="module")
def served(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """`queuety web`, with a pool that runs the jobs."""
    logs = tmp_path_factory.mktemp("logs")
    with (
        daemon(shared, "--workers=2", app=APP, log=logs / "pool"),
        web(shared, log=logs / "web", env={"QUEUETY_APP": APP}) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def app(shared: str) -> Iterator[Queuety]:
    made = Queuety(shared)
    yield made
    made.close()


def start(app: Queuety, handler: str = "tell", **payload: object) -> int:
    assert handler in handlers.handlers
    return app.enqueue(handler, payload).id


def follow(
    http: httpx.Client, path: str, *, last: str | None = None, most: int = 10_000
) -> list[ServerSentEvent]:
    """Events of a stream until it ends, or until there are so many of them."""
    headers = {"Last-Event-ID": last} if last else {}
    found = []
    with connect_sse(http, "GET", path, headers=headers) as source:
        for event in source.iter_sse():
            if event.data:
                found.append(event)
            if len(found) >= most:
                break
    return found


def told(event: ServerSentEvent) -> Json:
    """What an event tells, but for its time: of a start that is known to a millisecond or so."""
    return {name: value for name, value in event.json().items() if name != "timestamp"}


def types(events: list[ServerSentEvent]) -> list[str]:
    return [event.event for event in events]


def test_a_stream_tells_a_job_from_its_start_to_its_end_and_closes(app: Queuety, served: Web):
    job_id = start(app, count=3)

    with served.client() as http:
        events = follow(http, f"/api/jobs/{job_id}/events")

    assert types(events) == ["job.started", *["job.partial"] * 3, "job.completed"]
    assert [event.id for event in events] == [event.json()["event_id"] for event in events]
    assert {event.json()["job_id"] for event in events} == {str(job_id)}
    assert [event.json()["payload"] for event in events[1:4]] == [{"n": n} for n in range(3)]
    assert set(events[0].json()) == {"event_id", "type", "job_id", "timestamp", "payload"}


def test_a_late_viewer_gets_the_same_events_with_the_same_ids(app: Queuety, served: Web):
    job_id = start(app, count=5, pause=0.05)

    with served.client() as http:
        early = follow(http, f"/api/jobs/{job_id}/events")
        late = follow(http, f"/api/jobs/{job_id}/events")
        history = http.get(f"/api/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()

    assert [told(event) for event in late] == [told(event) for event in early]
    assert history["events"] == [event.json() for event in late]
    assert (history["over"], history["last_event_id"]) == (True, early[-1].id)


def test_a_viewer_that_comes_back_at_any_point_misses_nothing_and_sees_nothing_twice(
    app: Queuety, served: Web
):
    job_id = start(app, count=50, pause=0.02)
    seen: list[ServerSentEvent] = []
    chance = random.Random(7)

    with served.client() as http:
        while not seen or seen[-1].event not in FINAL:
            last = seen[-1].id if seen else None
            seen += follow(http, f"/api/jobs/{job_id}/events", last=last, most=chance.randint(1, 10))

    assert types(seen) == ["job.started", *["job.partial"] * 50, "job.completed"]
    assert [event.json()["payload"]["n"] for event in seen[1:-1]] == list(range(50))
    assert len({event.id for event in seen}) == 52


def test_who_has_the_final_event_is_told_that_nothing_more_comes(app: Queuety, served: Web):
    job_id = start(app, count=1)

    with served.client() as http:
        last = follow(http, f"/api/jobs/{job_id}/events")[-1]
        again = http.get(f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": last.id})
        asked = http.get(f"/api/jobs/{job_id}/events", params={"after": last.id})

    assert (again.status_code, again.content) == (204, b"")
    assert asked.status_code == 204


def test_a_retry_by_hand_goes_on_in_the_same_stream(app: Queuety, served: Web):
    job_id = start(app, "wrong")

    with served.client() as http:
        first = follow(http, f"/api/jobs/{job_id}/events")
        http.post(f"/api/jobs/{job_id}/retry").raise_for_status()
        second = follow(http, f"/api/jobs/{job_id}/events", last=first[-1].id)

    assert types(first)[-1] == types(second)[-1] == "job.failed"
    assert not {event.id for event in first} & {event.id for event in second}


def test_a_cancel_ends_the_stream_of_a_running_job(app: Queuety, served: Web):
    job_id = start(app, count=2000, pause=0.05)

    with served.client() as http, connect_sse(http, "GET", f"/api/jobs/{job_id}/events") as source:
        events = source.iter_sse()
        until(lambda: next(events).event == "job.started")
        with served.client() as other:
            assert other.post(f"/api/jobs/{job_id}/cancel").status_code in (200, 202)
        told = [event.event for event in events]

    assert told[-1] == "job.canceled"
    assert sum(one in FINAL for one in told) == 1


def test_several_jobs_come_in_one_stream_that_can_be_taken_up_anywhere(app: Queuety, served: Web):
    ids = [start(app, count=10, pause=0.02) for _ in range(4)]
    query = "&".join(f"job={job_id}" for job_id in ids)
    seen: list[ServerSentEvent] = []
    chance = random.Random(3)

    with served.client() as http:
        while sum(event.event in FINAL for event in seen) < len(ids):
            last = seen[-1].id if seen else None
            seen += follow(http, f"/api/events?{query}", last=last, most=chance.randint(1, 9))
        after_all = http.get(f"/api/events?{query}", headers={"Last-Event-ID": seen[-1].id})

    for job_id in ids:
        own = [event.json() for event in seen if event.json()["job_id"] == str(job_id)]
        assert [one["type"] for one in own] == ["job.started", *["job.partial"] * 10, "job.completed"]
        assert len({one["event_id"] for one in own}) == 12
    assert after_all.status_code == 204


def test_the_history_of_several_jobs_can_be_polled_page_by_page(app: Queuety, served: Web):
    ids = [start(app, count=2) for _ in range(2)]
    until(lambda: all(app.find(job_id).state.final for job_id in ids))

    with served.client(headers={"Accept": "application/json"}) as http:
        whole = http.get("/api/events", params={"job": ids}).json()
        rest = http.get("/api/events", params={"job": ids, "after": whole["last_event_id"]}).json()

    assert len(whole["events"]) == 8
    assert (whole["over"], rest) == (True, {**rest, "events": [], "over": True})


def test_the_stream_of_a_job_that_is_not_there_is_not_found_before_it_begins(app: Queuety, served: Web):
    job_id = start(app, count=1)

    with served.client() as http:
        one = http.get("/api/jobs/999999999/events")
        several = http.get(f"/api/events?job={job_id}&job=999999999")

    assert (one.status_code, several.status_code) == (404, 404)
    assert one.headers["content-type"] == "application/problem+json"


def test_a_viewer_that_comes_back_after_a_deletion_is_told_that_there_is_no_such_job(
    app: Queuety, served: Web
):
    job_id = start(app, count=1)

    with served.client() as http:
        last = follow(http, f"/api/jobs/{job_id}/events")[-1]
        app.delete(job_id)
        back = http.get(f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": last.id})

    assert (back.status_code, back.json()["type"]) == (404, "urn:queuety:problem:job-not-found")


@pytest.mark.parametrize("last", ["x", "1.9", "-1", "1.0.0", "9" * 30])
def test_what_is_no_events_id_is_refused(app: Queuety, served: Web, last: str):
    job_id = start(app, count=1)

    with served.client() as http:
        assert http.get(f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": last}).status_code == 422


def test_proxies_neither_hold_a_stream_back_nor_keep_it(app: Queuety, served: Web):
    job_id = start(app, count=1)

    with served.client() as http, http.stream("GET", f"/api/jobs/{job_id}/events") as answer:
        lines = [line for line in answer.iter_lines() if line]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert lines[0].startswith("retry: ")  # at once, so that the head is not held back either


def test_head_tells_of_a_stream_and_opens_none(app: Queuety, served: Web):
    job_id = start(app, count=400, pause=0.05)

    with served.client() as http:
        answer = http.head(f"/api/jobs/{job_id}/events")
        http.post(f"/api/jobs/{job_id}/cancel")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("application/json, text/event-stream;q=0.5", "application/json"),
        ("text/event-stream, application/json;q=0.5", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/html,*/*;q=0.8", "text/event-stream"),
        ("image/png", "application/problem+json"),
    ],
)
def test_the_client_says_what_it_wants(app: Queuety, served: Web, accept: str, kind: str):
    job_id = start(app, count=1)

    with served.client() as http:
        answer = http.get(f"/api/jobs/{job_id}/events", headers={"Accept": accept})

    assert answer.headers["content-type"].partition(";")[0] == kind


def test_pings_have_no_id(database: str, monkeypatch: pytest.MonkeyPatch):
    from queuety.web import streams

    framed = streams._ping().encode().decode()

    assert framed.startswith(":")
    assert "id" not in framed.split("\n")


def test_streams_are_bounded_for_one_client_and_in_all(shared: str, app: Queuety, tmp_path: Path):
    job_id = app.enqueue("tell", {"count": 1}, delay=600).id
    path = f"/api/jobs/{job_id}/events"
    bounds = {"QUEUETY_WEB_STREAMS": "3", "QUEUETY_WEB_STREAMS_PER_CLIENT": "2"}

    with web(shared, log=tmp_path / "web", env=bounds) as made, made.client() as http:
        with http.stream("GET", path), http.stream("GET", path):
            third = http.get(path)
        free_again = until(lambda: _opens(http, path))

    assert (third.status_code, third.headers["retry-after"]) == (429, "5")
    assert free_again


def _opens(http: httpx.Client, path: str) -> bool:
    with http.stream("GET", path) as answer:
        return answer.status_code == 200


def test_a_stop_ends_open_streams_within_seconds_and_cleanly(shared: str, app: Queuety, tmp_path: Path):
    job_id = app.enqueue("tell", {"count": 1}, delay=600).id

    with web(shared, log=tmp_path / "web") as made, made.client() as http:
        with http.stream("GET", f"/api/jobs/{job_id}/events") as answer:
            first = next(answer.iter_lines())
            began = time.monotonic()
            code = made.process.stop(15)
        took = time.monotonic() - began

    assert first.startswith("retry: ")
    assert code == 0, made.process.log()
    assert took < 10


def test_nothing_more_is_written_to_a_viewer_that_left_in_the_midst_of_a_history(
    shared: str, app: Queuety, tmp_path: Path
):
    job_id = app.enqueue("tell", {"count": 1}, delay=600).id
    with app.connection() as conn:
        conn.execute(
            "INSERT INTO queuety.job_events (job_id, type, data)"
            " SELECT %s, 'partial', jsonb_build_object('n', n, 'text', repeat('x', 300))"
            " FROM generate_series(1, 3000) AS n",
            [job_id],
        )

    with web(shared, log=tmp_path / "web") as made, ThreadPoolExecutor(12) as threads:
        chance = random.Random(1)
        taken = [chance.randrange(100, 900_000) for _ in range(24)]
        list(threads.map(lambda size: _leave(made.url, f"/api/jobs/{job_id}/events", size), taken))
        left = until(lambda: "queuety_http_streams 0" in httpx.get(f"{made.url}/metrics").text, 30)

        assert left
        assert "socket.send() raised exception" not in made.process.log()


def _leave(url: str, path: str, size: int) -> None:
    """Read so many bytes of a stream, and close the connection on the rest."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as taking:
        taking.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while size > 0 and (data := taking.recv(65536)):
            size -= len(data)


async def view(url: str, path: str, number: int, most: int) -> list[Json]:
    """All events of a stream, by a client that leaves after some of them at random, and comes back at once."""
    chance = random.Random(number)
    address = url.removeprefix("http://").split(":")
    seen: list[Json] = []
    while not seen or seen[-1]["type"] not in FINAL:
        left = chance.randint(1, most)
        reader, writer = await asyncio.open_connection(address[0], int(address[1]), limit=1 << 20)
        last = f"Last-Event-ID: {seen[-1]['event_id']}\r\n" if seen else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n".encode())
        assert b" 200 " in await reader.readline()
        while left and (line := await reader.readline()):
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
                left -= 1
            if seen and seen[-1]["type"] in FINAL:
                break
        writer.close()
    return seen


def crowd(served: Web, app: Queuety, viewers: int, jobs: int, count: int, pause: float) -> None:
    """Many viewers of a few jobs, each thrown out at random and coming back, see each event once."""
    ids = [start(app, count=count, pause=pause) for _ in range(jobs)]

    async def all_of_them() -> list[list[Json]]:
        paths = [f"/api/jobs/{ids[number % jobs]}/events" for number in range(viewers)]
        return await asyncio.gather(*(view(served.url, path, n, count) for n, path in enumerate(paths)))

    for seen in asyncio.run(all_of_them()):
        numbers = [one["payload"]["n"] for one in seen if one["type"] == "job.partial"]
        assert numbers == list(range(count))
        assert len({one["event_id"] for one in seen}) == len(seen) == count + 2


def test_fifty_viewers_that_come_and_go_see_each_event_once(app: Queuety, served: Web):
    crowd(served, app, 50, 2, count=30, pause=0.1)


@pytest.mark.soak
def test_a_thousand_viewers_that_come_and_go_see_each_event_once_in_bounded_memory(
    shared: str, app: Queuety, tmp_path: Path
):
    bounds = {"QUEUETY_WEB_STREAMS": "2000", "QUEUETY_WEB_STREAMS_PER_CLIENT": "2000"}
    with (
        daemon(shared, "--workers=8", app=APP, log=tmp_path / "pool"),
        web(shared, log=tmp_path / "web", env=bounds) as made,
    ):
        process = psutil.Process(made.process.pid)
        crowd(made, app, 50, 2, count=5, pause=0.1)
        sizes = [process.memory_info().rss]
        for _ in range(3):
            crowd(made, app, 1000, 10, count=60, pause=0.5)
            sizes.append(process.memory_info().rss)
        left = httpx.get(f"{made.url}/metrics").text

    print("resident memory in MB:", [round(size / 2**20) for size in sizes])
    assert "queuety_http_streams 0" in left
    assert sizes[1] - sizes[0] < 150 * 2**20  # for a thousand streams
    assert sizes[3] - sizes[1] < 30 * 2**20  # and no more for the next thousands
