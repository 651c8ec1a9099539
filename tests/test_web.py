"""Jobs over HTTP: what each route promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from starlette.testclient import TestClient

from queuety import Context, Permanent, Queuety, errors
from queuety.web import problems
from queuety.web.schemas import SCHEMAS
from tests.web import Json, client

NEW_JOB = SCHEMAS["NewJob"]


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    made = Queuety(database)

    @made.job
    def add(a: int, b: int) -> int:
        return a + b

    @made.job(max_attempts=1)
    def fail(ctx: Context) -> None:
        ctx.progress(step=1, total=4, message="a quarter")
        raise Permanent("on purpose")

    yield made
    made.close()


@pytest.fixture
def http(app: Queuety) -> Iterator[TestClient]:
    with client(app) as made:
        yield made


def start(http: TestClient, handler: str = "add", **more: object) -> str:
    body = {"handler": handler, "payload": {"a": 1, "b": 2} if handler == "add" else {}, **more}
    answer = http.post("/api/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def problem(answer: object, status: int, kind: str) -> Json:
    assert answer.status_code == status, answer.text  # type: ignore[attr-defined]
    assert answer.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    told: Json = answer.json()  # type: ignore[attr-defined]
    assert told["status"] == status
    assert told["type"] == f"urn:queuety:problem:{kind}"
    return told


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_started_job_is_accepted_and_says_where_it_is(app: Queuety, http: TestClient):
    answer = http.post("/api/jobs", json={"handler": "add", "payload": {"a": 1, "b": 2}, "queue": "sums"})

    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/jobs/{answer.json()['id']}"
    job = http.get(answer.headers["location"]).json()
    assert (job["id"], job["status"], job["queue"]) == (answer.json()["id"], "pending", "sums")
    assert app.find(int(job["id"])).payload == {"a": 1, "b": 2}


def test_a_completed_job_shows_its_result(app: Queuety, http: TestClient):
    job_id = start(http)
    app.worker().flush()

    job = http.get(f"/api/jobs/{job_id}").json()

    assert (job["status"], job["state"], job["result"]) == ("completed", "completed", 3)


def test_a_failed_job_shows_its_error_without_a_trace_and_its_last_progress(app: Queuety, http: TestClient):
    job_id = start(http, "fail")
    app.worker().flush()

    job = http.get(f"/api/jobs/{job_id}").json()

    assert (job["status"], job["state"]) == ("failed", "buried")
    assert set(job["error"]) == {"type", "message"}
    assert job["error"]["message"].startswith("on purpose")
    assert {name: job["progress"][name] for name in ("step", "total", "message")} == {
        "step": 1, "total": 4, "message": "a quarter",
    }  # fmt: skip


def test_ids_are_texts_beyond_what_javascript_can_count(app: Queuety, http: TestClient):
    with app.connection() as conn:
        conn.execute("SELECT setval(pg_get_serial_sequence('queuety.jobs', 'id'), 9007199254740993)")

    job_id = start(http)

    assert job_id == "9007199254740994"
    assert http.get(f"/api/jobs/{job_id}").json()["id"] == job_id


@pytest.mark.parametrize("job_id", ["4711", "0", "-1", "x", "9" * 19, "9" * 30, "1e3", "٣"])
def test_a_job_that_is_not_there_is_not_found(http: TestClient, job_id: str):
    problem(http.get(f"/api/jobs/{job_id}"), 404, "job-not-found")


def test_lists_come_in_pages_newest_first(http: TestClient):
    ids = [start(http) for _ in range(5)]

    first = http.get("/api/jobs", params={"limit": 3}).json()
    second = http.get("/api/jobs", params={"limit": 3, "after": first["next"]}).json()

    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert second["next"] is None


def test_lists_are_filtered_by_state_queue_handler_and_tag(app: Queuety, http: TestClient):
    buried = start(http, "fail")
    app.worker().flush()
    tagged = start(http, tags=["red"], queue="q")

    def ids(**filters: str) -> list[str]:
        return [job["id"] for job in http.get("/api/jobs", params=filters).json()["jobs"]]

    assert ids(state="failed") == ids(state="buried") == ids(handler="fail") == [buried]
    assert ids(state="pending") == ids(tag="red") == ids(queue="q") == [tagged]
    assert ids(state="in_progress") == ids(tag="blue") == []


def test_cancelling_says_what_became_of_it(app: Queuety, http: TestClient):
    waiting, done = start(http), start(http)
    http.post(f"/api/jobs/{waiting}/cancel")
    app.worker().flush()

    again = http.post(f"/api/jobs/{waiting}/cancel")

    assert (again.status_code, again.json()["status"]) == (200, "canceled")
    problem(http.post(f"/api/jobs/{done}/cancel"), 409, "wrong-state")
    problem(http.post("/api/jobs/999/cancel"), 404, "job-not-found")


def test_a_failed_job_can_be_sent_back(app: Queuety, http: TestClient):
    job_id = start(http, "fail")
    app.worker().flush()

    answer = http.post(f"/api/jobs/{job_id}/retry")

    assert answer.status_code == 202
    assert http.get(answer.headers["location"]).json()["status"] == "pending"
    problem(http.post(f"/api/jobs/{job_id}/retry"), 409, "wrong-state")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"payload": {}}, "handler"),
        ({"handler": "add", "payload": [1]}, "payload"),
        ({"handler": "add", "payload": {"a": 1}}, "b"),
        ({"handler": "add", "payload": {"a": 1, "b": 2}, "connection": "x"}, "connection"),
        ({"handler": "add", "payload": {"a": 1, "b": 2}, "priority": "enormous"}, "priority"),
        ({"handler": "add", "payload": {"a": 1, "b": 2}, "at": "yesterday"}, "at"),
        ({"handler": "add", "payload": {"a": 1, "b": 2}, "delay": 1, "at": "2030-01-01T00:00:00Z"}, "delay"),
        ({"handler": "add", "payload": {"a": 1, "b": 2}, "on_duplicate": "skip", "unique": True}, "skip"),
        ({"handler": "a\x00b", "payload": {}}, "handler"),
        ({"handler": "new", "payload": {"a": "\ud800"}}, "payload"),
    ],
)
def test_a_job_that_cannot_be_meant_is_refused_and_not_written(http: TestClient, body: Json, part: str):
    import json

    answer = http.post("/api/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert answer.status_code == 422
    assert part in answer.json()["detail"]
    assert http.get("/api/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b'{"handler": "add", "handler": "fail"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"handler": "add"}', "text/plain", 415),
        (b"handler=add", "application/x-www-form-urlencoded", 415),
        (b'{"handler": "add"}', "", 415),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(http: TestClient, content: bytes, kind: str, status: int):
    answer = http.post("/api/jobs", content=content, headers={"Content-Type": kind} if kind else {})

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_is_bounded_also_if_it_does_not_say_how_long_it_is(http: TestClient):
    huge = b'{"handler": "add", "payload": {"a": "' + b"x" * 3_000_000 + b'"}}'

    def parts() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 20_000

    headers = {"Content-Type": "application/json"}
    problem(http.post("/api/jobs", content=huge, headers=headers), 413, "too-large")
    problem(http.post("/api/jobs", content=parts(), headers=headers), 413, "too-large")


def test_times_and_limits_arrive_as_they_were_sent(app: Queuety, http: TestClient):
    job_id = start(http, at="2040-01-01T09:00:00+09:00", rate_limit=[5, 60], backoff=[1, 2], cost_units=3)

    assert app.find(int(job_id)).available_at == datetime(2040, 1, 1, tzinfo=UTC)


def test_a_null_is_as_if_it_were_left_out_and_a_delay_below_zero_means_now(app: Queuety, http: TestClient):
    nothing: Json = dict.fromkeys(NEW_JOB["properties"].keys() - {"handler", "payload", "delay"})

    job = app.find(int(start(http, **nothing, delay=-5)))

    assert job.queue == "default"
    assert job.available_at <= job.created_at


def test_the_shape_of_a_new_job_allows_what_is_accepted():
    body = {"handler": "add", **dict.fromkeys(NEW_JOB["properties"].keys() - {"handler"}), "delay": -5}

    Draft202012Validator(NEW_JOB).validate(body)


def test_a_duplicate_names_the_job_that_is_there(http: TestClient):
    first = start(http, unique_key="one", on_duplicate="error")

    answer = http.post(
        "/api/jobs",
        json={"handler": "add", "payload": {"a": 1, "b": 2}, "unique_key": "one", "on_duplicate": "error"},
    )

    assert problem(answer, 409, "duplicate-job")["existing"] == first


# ── requests made once ────────────────────────────────────────────────────────────────────────────────────────

ORDER: Json = {"handler": "add", "payload": {"a": 1, "b": 2}}


@pytest.mark.parametrize("key", ["k-1", '"k-1"', "550e8400-e29b-41d4-a716-446655440000"])
def test_the_same_key_and_body_make_one_job(http: TestClient, key: str):
    answers = [http.post("/api/jobs", json=ORDER, headers={"Idempotency-Key": key}) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [202] * 3
    assert len({answer.text for answer in answers}) == 1
    assert len(http.get("/api/jobs").json()["jobs"]) == 1


def test_the_same_key_at_the_same_time_makes_one_job(http: TestClient):
    together = threading.Barrier(8)

    def send(_: int) -> str:
        together.wait(10)
        return str(http.post("/api/jobs", json=ORDER, headers={"Idempotency-Key": "at once"}).text)

    with ThreadPoolExecutor(8) as threads:
        answers = set(threads.map(send, range(8)))

    assert len(answers) == 1
    assert len(http.get("/api/jobs").json()["jobs"]) == 1


def test_a_key_with_another_body_is_refused(http: TestClient):
    headers = {"Idempotency-Key": "k"}
    http.post("/api/jobs", json=ORDER, headers=headers)

    answer = http.post("/api/jobs", json={**ORDER, "payload": {"a": 1, "b": 3}}, headers=headers)

    problem(answer, 422, "idempotency-key-reused")
    assert len(http.get("/api/jobs").json()["jobs"]) == 1


def test_a_key_whose_job_was_deleted_is_gone_and_makes_no_second_one(app: Queuety, http: TestClient):
    headers = {"Idempotency-Key": "k"}
    job_id = http.post("/api/jobs", json=ORDER, headers=headers).json()["id"]
    app.cancel(int(job_id))
    app.delete(int(job_id))

    answer = http.post("/api/jobs", json=ORDER, headers=headers)

    assert job_id in problem(answer, 410, "job-deleted")["detail"]
    assert http.get("/api/jobs").json()["jobs"] == []


def test_a_refused_request_leaves_its_key_free(http: TestClient):
    headers = {"Idempotency-Key": "k"}
    assert http.post("/api/jobs", json={"handler": "add", "payload": {}}, headers=headers).status_code == 422

    assert http.post("/api/jobs", json=ORDER, headers=headers).status_code == 202


def test_a_key_is_forgotten_after_its_window(app: Queuety, http: TestClient):
    headers = {"Idempotency-Key": "k"}
    first = http.post("/api/jobs", json=ORDER, headers=headers).json()["id"]
    with app.connection() as conn:
        conn.execute("UPDATE queuety.http_requests SET created_at = created_at - interval '2 days'")

    second = http.post("/api/jobs", json=ORDER, headers=headers).json()["id"]

    assert first != second


def test_lapsed_keys_are_taken_along(app: Queuety, http: TestClient):
    for number in range(3):
        http.post("/api/jobs", json=ORDER, headers={"Idempotency-Key": f"old {number}"})
    with app.connection() as conn:
        conn.execute("UPDATE queuety.http_requests SET created_at = created_at - interval '2 days'")
        http.post("/api/jobs", json=ORDER, headers={"Idempotency-Key": "new"})

        assert conn.execute("SELECT key FROM queuety.http_requests").fetchall() == [("new",)]


@pytest.mark.parametrize("key", ["", '""', "x" * 256])
def test_a_key_that_is_none_is_refused(http: TestClient, key: str):
    assert http.post("/api/jobs", json=ORDER, headers={"Idempotency-Key": key}).status_code == 422


# ── polling ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_has_the_job_as_it_stands_is_not_sent_it_again(app: Queuety, http: TestClient):
    job_id = start(http)
    tag = http.get(f"/api/jobs/{job_id}").headers["etag"]

    same = http.get(f"/api/jobs/{job_id}", headers={"If-None-Match": f'"other", W/{tag}'})
    app.worker().flush()
    changed = http.get(f"/api/jobs/{job_id}", headers={"If-None-Match": tag})

    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert (changed.status_code, changed.json()["status"]) == (200, "completed")
    assert changed.headers["etag"] != tag


# ── queues, schedules, workers ────────────────────────────────────────────────────────────────────────────────


def test_a_paused_queue_says_so_until_it_is_resumed(http: TestClient):
    start(http, queue="mail")

    paused = http.post("/api/queues/mail/pause", json={"reason": "moving", "until": "2040-01-01T00:00:00Z"})
    shown = http.get("/api/queues").json()["queues"]
    resumed = http.post("/api/queues/mail/resume")

    assert (paused.status_code, paused.json()["reason"]) == (200, "moving")
    assert [(row["name"], row["paused"], row["due"]) for row in shown] == [("mail", True, 1)]
    assert resumed.json()["was_paused"] is True
    assert http.get("/api/queues").json()["queues"][0]["paused"] is False


def test_queues_come_in_pages(http: TestClient):
    for name in ("c", "a", "b"):
        start(http, queue=name)

    first = http.get("/api/queues", params={"limit": 2}).json()
    rest = http.get("/api/queues", params={"limit": 2, "after": first["next"]}).json()

    assert [row["name"] for row in first["queues"] + rest["queues"]] == ["a", "b", "c"]


@pytest.mark.parametrize("key", ["nightly", "shop/nightly:a@b+c#1"])
def test_a_schedule_is_listed_run_paused_and_resumed(app: Queuety, http: TestClient, key: str):
    from urllib.parse import quote

    app.schedules.add("add", name=key, cron="0 3 * * *", payload={"a": 1, "b": 2})
    path = f"/api/schedules/{quote(key, safe='')}"

    run = http.post(f"{path}/run")
    paused = http.post(f"{path}/pause", json={"reason": "quiet"}).json()
    resumed = http.post(f"{path}/resume").json()
    (listed,) = http.get("/api/schedules", params={"handler": "add"}).json()["schedules"]

    assert run.status_code == 202
    assert http.get(run.headers["location"]).json()["handler"] == "add"
    assert (paused["state"], paused["pause_reason"]) == ("paused", "quiet")
    assert resumed == {"key": key, "was_paused": True}
    assert (listed["key"], listed["state"]) == (key, "active")


def test_a_schedule_that_is_not_there_is_not_found(http: TestClient):
    for verb in ("run", "pause", "resume"):
        problem(http.post(f"/api/schedules/none/{verb}"), 404, "schedule-not-found")


def test_workers_are_listed_with_what_they_hold(app: Queuety, http: TestClient):
    with app.connection() as conn:
        conn.execute(
            "INSERT INTO queuety.workers (kind, name, host, pid, queues, version)"
            " VALUES ('worker', 'w', 'h', 1, '{default}', '1')"
        )

    (worker,) = http.get("/api/workers").json()["workers"]

    assert (worker["name"], worker["jobs"]) == ("w", [])
    assert worker["id"].isdigit()


# ── the protocol ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "state=gone", "after=-1", "limit=1&limit=2"]
)
def test_a_parameter_that_cannot_be_meant_is_refused(http: TestClient, query: str):
    assert http.get(f"/api/jobs?{query}").status_code == 422


@pytest.mark.parametrize("path", ["/api/queues", "/api/schedules", "/api/jobs", "/api/workers"])
@pytest.mark.parametrize("after", ["%00", "a%00b", "%ED%A0%80", "%FF", " "])
def test_a_place_in_a_list_that_no_row_can_have_is_refused(http: TestClient, path: str, after: str):
    assert http.get(f"{path}?after={after}").status_code == 422


def test_a_parameter_that_does_not_exist_is_refused(http: TestClient):
    told = problem(http.get("/api/jobs?stat=buried"), 422, "unknown-parameter")

    assert "state" in told["hint"]


def test_other_methods_are_refused_with_those_that_are_there(http: TestClient):
    answer = http.request("DELETE", "/api/jobs")

    problem(answer, 405, "no-such-method")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


def test_head_and_options_answer_without_a_body(http: TestClient):
    job_id = start(http)
    got, head = http.get(f"/api/jobs/{job_id}"), http.head(f"/api/jobs/{job_id}")
    options = http.options(f"/api/jobs/{job_id}/cancel")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == got.headers["etag"]
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")


@pytest.mark.parametrize("path", ["/", "/api", "/api/jobs/", "/api/nothing", "/api/jobs/1/2/3"])
def test_a_page_that_is_not_there_is_a_problem(http: TestClient, path: str):
    problem(http.get(path), 404, "no-such-page")


OURS = [
    one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.QueuetyError)
]


@pytest.mark.parametrize("kind", OURS)
def test_every_error_of_ours_is_told_with_a_status_that_fits_its_exit_code(kind: type[errors.QueuetyError]):
    status = problems.status_of(kind)

    expected = {2: {422}, 3: {503, 500}, 4: {503}, 5: {404}, 6: {409}}
    assert status in expected.get(kind.exit_code, {409, 500, 503, 504})
    assert status in problems.TITLES


def test_a_database_that_is_away_is_told_with_the_time_to_come_again(tmp_path):
    away = Queuety(f"postgresql:///queue?host={tmp_path}&user=someone&password=geheim")

    with client(away) as http:
        answer = http.get("/api/jobs")

    told = problem(answer, 503, "database-unreachable")
    assert int(answer.headers["retry-after"]) > 0
    assert str(tmp_path) not in str(told)


def test_an_unexpected_error_tells_nothing_of_what_is_inside(app: Queuety, http: TestClient, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("password=geheim")

    monkeypatch.setattr(app, "cancel", broken)

    answer = http.post("/api/jobs/1/cancel")

    problem(answer, 500, "unexpected")
    assert "geheim" not in answer.text


def test_what_postgresql_can_hold_and_json_cannot_is_shown_nevertheless(app: Queuety, http: TestClient):
    job_id = start(http, "new", payload={"a": 1})
    with app.connection() as conn:
        conn.execute("""UPDATE queuety.jobs SET payload = '{"a": 1e400, "b": "\\ud800"}'""")

    answer = http.get(f"/api/jobs/{job_id}")

    assert answer.json()["payload"] == {"a": None, "b": "\ud800"}


def test_metrics_tell_the_depths_of_all_queues(http: TestClient):
    start(http, queue="mail")

    text = http.get("/metrics").text

    assert 'queuety_queue_jobs{queue="mail",state="due"} 1' in text
