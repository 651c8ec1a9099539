"""Webhooks: whose end is told to whom, exactly once, and what becomes of a delivery that is not taken."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Judge
from standardwebhooks import WebhookVerificationError

from queuety import Queuety, State
from queuety.delivery import post
from queuety.errors import UsageError, WebhookExists, WebhookNotFound
from queuety.model import Job
from queuety.store.connect import Connection
from queuety.webhooks import EVENTS
from tests.daemon import Daemon, daemon, read_ledger, until
from tests.receivers import Receiver, receiver

APP = "tests.apps.streams:app"
QUICK = [0.05] * 5


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)

    @queue.job
    def ok(value: Any = None) -> Any:
        return value

    @queue.job(max_attempts=1)
    def fail() -> None:
        raise ValueError("on purpose")

    yield queue
    queue.close()


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


@pytest.fixture
def add(app: Queuety, there: Receiver) -> Callable[..., str]:
    """Add a webhook for the receiver; returns its secret."""

    def add(name: str = "hook", **given: Any) -> str:
        given = {"backoff": QUICK, "allow_private": True, **given}
        return app.webhooks.add(name, given.pop("url", there.url), **given).secret

    return add


def deliveries(app: Queuety, name: str = "hook") -> list[Job]:
    """Those of a webhook, the first one first."""
    return app.jobs(tag=f"webhook:{name}", limit=1000)[::-1]


def flush_until(app: Queuety, condition: Callable[[], Any]) -> None:
    until(lambda: app.worker().flush() and condition(), what="what a flush was to bring about")


def state(app: Queuety, name: str = "hook") -> list[State]:
    return [one.state for one in deliveries(app, name)]


def said(app: Queuety) -> str:
    """The error of the first delivery."""
    return str((deliveries(app)[0].error or {}).get("message"))


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


def test_an_end_is_posted_with_a_signature_that_the_specification_s_own_library_accepts(app, there, add):
    secret = add()
    job = app.enqueue("ok", {"value": {"n": 1, "text": "é"}}, tags=["red"])

    app.worker().flush()

    [got] = there.got
    assert got.path == "/hook?a=1"
    told = Judge(secret).verify(got.body, got.headers)
    assert told["type"] == "job.completed"
    assert told["data"] == {
        "job_id": str(job.id), "handler": "ok", "queue": "default", "tags": ["red"],
        "payload": {"result": {"n": 1, "text": "é"}, "attempts": 1},
    }  # fmt: skip
    finished = app.find(job.id).finished_at
    assert datetime.fromisoformat(told["timestamp"]) == finished
    assert got.headers["content-type"] == "application/json"


def test_another_secret_does_not_verify(app, there, add):
    add()
    app.enqueue("ok")
    app.worker().flush()
    [got] = there.got

    with pytest.raises(WebhookVerificationError):
        Judge(app.webhooks.rotate("hook").secret).verify(got.body, got.headers)


def test_a_failure_is_told_with_its_error_and_without_its_traceback(app, there, add):
    add()
    app.enqueue("fail")

    app.worker().flush()

    [got] = there.got
    assert got.json["type"] == "job.failed"
    assert got.json["data"]["payload"] == {
        "error": {"type": "ValueError", "message": "on purpose (attempt 1 of 1)"},
        "attempts": 1,
    }


def test_a_large_result_is_left_out_and_that_is_said(app, there, add):
    add()
    app.enqueue("ok", {"value": "x" * 100_000})

    app.worker().flush()

    [got] = there.got
    assert got.json["data"]["payload"] == {"result": None, "attempts": 1, "resultOmitted": True}


def test_further_headers_are_sent(app, there, add):
    add(headers={"Authorization": "Bearer abc"})
    app.enqueue("ok")

    app.worker().flush()

    assert there.got[0].headers["authorization"] == "Bearer abc"
    assert app.webhooks.find("hook").headers == ("Authorization",)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 3),
        ({"events": ["job.failed"]}, 1),
        ({"handlers": ["ok"]}, 2),
        ({"queues": ["mail"]}, 1),
        ({"tags": ["red", "blue"]}, 1),
        ({"handlers": ["fail"], "tags": ["red"]}, 0),
    ],
)
def test_only_what_matches_is_told(app, there, add, given, told):
    add(**given)
    app.enqueue("ok", tags=["red", "green"])
    app.enqueue("ok", queue="mail")
    app.enqueue("fail")

    app.worker(["default", "mail"]).flush()

    assert len(there.got) == told


def test_each_webhook_has_a_delivery_of_its_own_and_both_know_that_it_is_one_event(app, there, add):
    add("one")
    add("two")
    app.enqueue("ok")

    app.worker().flush()

    assert len(there.got) == 2
    assert len({got.id for got in there.got}) == 1
    assert len(deliveries(app, "one")) == len(deliveries(app, "two")) == 1


def test_deliveries_tell_of_no_deliveries(app, there, add):
    add(handlers=[])
    there.answer(500, 500, 500)
    app.enqueue("ok")

    flush_until(app, lambda: state(app) == [State.COMPLETED])

    assert len(deliveries(app)) == 1
    assert {got.json["data"]["handler"] for got in there.got} == {"ok"}


def test_a_buried_delivery_is_told_to_nobody(app, there, add):
    add(max_attempts=1)
    there.answer(500)
    app.enqueue("ok")

    app.worker().flush()

    assert state(app) == [State.BURIED]
    assert len(there.got) == 1


# ── every road to an end ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pool(database: str, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    made: list[Any] = []

    def start(*arguments: str, **env: str) -> Daemon:
        context = daemon(
            database,
            *(arguments or ("--workers=1",)),
            app=APP,
            log=tmp_path / "log",
            ledger=tmp_path / "ledger",
            env={"QUEUETY_WORKER_SLEEP": "0.2", "QUEUETY_STALE_TIMEOUT": "3", **env},
        )
        made.append(context)
        running = context.__enter__()
        running.ready(1)
        return running

    yield start
    for context in made:
        context.__exit__(None, None, None)


def _cancel(app: Queuety, pool: Daemon, job: int) -> None:
    until(lambda: app.find(job).state is State.PROCESSING)
    app.cancel(job)


def _kill(app: Queuety, pool: Daemon, job: int) -> None:
    until(lambda: read_ledger(pool.log_path.with_name("ledger")))  # before that it would be given back
    for one in pool.workers():
        one.kill()


def _nothing(app: Queuety, pool: Daemon, job: int) -> None:
    pass


ROADS = [
    pytest.param("steps", {"count": 1}, {}, _nothing, "job.completed", id="success"),
    pytest.param("atomic", {}, {}, _nothing, "job.completed", id="a transaction of its own"),
    pytest.param("broken", {}, {"max_attempts": 1}, _nothing, "job.failed", id="failure"),
    pytest.param(
        "broken", {}, {"max_attempts": 3, "backoff": [0.1]}, _nothing, "job.failed", id="the last attempt"
    ),
    pytest.param("slow", {}, {"max_attempts": 1}, _nothing, "job.failed", id="time limit"),
    pytest.param("polite", {}, {}, _cancel, "job.canceled", id="cancelled while running"),
    pytest.param("polite", {}, {"max_attempts": 1}, _kill, "job.failed", id="killed"),
]


@pytest.mark.parametrize(("handler", "payload", "given", "act", "told"), ROADS)
def test_every_road_of_a_run_to_its_end_is_told_once(
    app, there, add, pool, handler, payload, given, act, told
):
    add()
    running = pool()
    job = app.enqueue(handler, payload, **given)

    act(app, running, job.id)

    until(lambda: there.got, 30, running.log())
    until(lambda: state(app) == [State.COMPLETED])
    assert [(got.json["type"], got.json["data"]["job_id"]) for got in there.got] == [(told, str(job.id))]


@pytest.mark.parametrize(("verb", "told"), [("cancel", "job.canceled"), ("bury", "job.failed")])
def test_an_end_before_the_first_run_is_told_once(app, there, add, verb, told):
    add()
    job = app.enqueue("ok", delay=3600)

    getattr(app, verb)(job.id)
    app.worker().flush()

    assert [got.json["type"] for got in there.got] == [told]


def test_an_end_that_recovery_finds_is_told_once(app, there, add, conn):
    add()
    job = app.enqueue("ok", max_attempts=1)
    conn.execute(
        "UPDATE queuety.jobs SET state = 'processing', lease = 7, lease_until = now() - interval '1 hour',"
        " attempts = 1, worker = 'gone', claimed_at = now() - interval '2 hours' WHERE id = %s",
        [job.id],
    )

    app.recover()
    app.worker().flush()

    assert [got.json["type"] for got in there.got] == ["job.failed"]


def test_a_job_without_a_handler_is_told_of_when_it_is_buried(app, there, add, pool):
    add()
    job = app.enqueue("nobody")
    pool(QUEUETY_UNKNOWN_HANDLER_GRACE="0")

    until(lambda: there.got, 30)

    assert [(got.json["type"], got.json["data"]["job_id"]) for got in there.got] == [
        ("job.failed", str(job.id))
    ]


def test_the_end_of_a_later_life_is_an_event_of_its_own(app, there, add):
    add()
    job = app.enqueue("fail")
    app.worker().flush()

    app.retry(job.id)
    app.worker().flush()

    assert [got.json["type"] for got in there.got] == ["job.failed"] * 2
    assert len({got.id for got in there.got}) == 2


def test_an_end_that_is_rolled_back_is_told_to_nobody(app, there, add, conn):
    from queuety.store import verbs

    add()
    job = app.enqueue("ok")
    with conn.transaction(force_rollback=True):
        verbs.cancel(conn, job.id)
        assert len(deliveries_of(conn)) == 1

    assert deliveries(app) == []
    assert app.find(job.id).state is State.PENDING


def deliveries_of(conn: Connection) -> list[Any]:
    return conn.execute("SELECT id FROM queuety.jobs WHERE handler = 'queuety.webhook'").fetchall()


def test_many_ends_at_once_are_told_each(app, there, add):
    add(concurrency=100)
    app.enqueue_many(("ok", {"value": n}) for n in range(200))

    app.worker().flush()

    told = sorted(got.json["data"]["payload"]["result"] for got in there.got)
    assert told == list(range(200))
    assert len({got.id for got in there.got}) == 200


def test_a_sleeping_pool_is_woken_for_a_delivery(app, there, add, pool):
    add(deliver_on="hooks")
    pool("--queue=hooks", QUEUETY_WORKER_SLEEP="30")
    until(lambda: app.jobs() == [] and _sleepers(app) == ["hooks"], 30)

    app.cancel(app.enqueue("ok").id)

    until(lambda: there.got, 10)


def _sleepers(app: Queuety) -> list[str]:
    with app.connection() as conn:
        return [row[0] for row in conn.execute("SELECT queue FROM queuety.sleepers")]


# ── what costs nothing ────────────────────────────────────────────────────────────────────────────


def test_without_webhooks_no_statement_calls_anything_at_an_end(app, conn):
    conn.execute("CREATE OR REPLACE FUNCTION queuety.ended(state queuety.job_state, ids bigint[]) RETURNS void"
                 " LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$")  # fmt: skip
    app.enqueue("ok")
    app.enqueue("fail")
    app.cancel(app.enqueue("ok").id)

    ran = app.worker().flush()

    assert (ran.completed, ran.buried) == (1, 1)


def test_a_paused_webhook_costs_as_little_as_none(app, conn, add):
    add()
    app.webhooks.pause("hook")

    assert conn.execute("SELECT EXISTS (SELECT FROM queuety.audience)").fetchone() == (False,)


# ── retries ───────────────────────────────────────────────────────────────────────────────────────


def test_retries_have_the_same_id_and_the_same_body(app, there, add):
    secret = add()
    there.answer(500, 404, 400)
    app.enqueue("ok")

    flush_until(app, lambda: state(app) == [State.COMPLETED])

    assert len(there.got) == 4
    assert len({got.id for got in there.got}) == 1
    assert len({got.body for got in there.got}) == 1
    for got in there.got:
        Judge(secret).verify(got.body, got.headers)
    assert deliveries(app)[0].attempts == 4


def test_a_receiver_that_is_away_for_long_gets_everything_when_it_is_back(app, add):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    secret = add(url=f"http://localhost:{port}/", backoff=[0.2], max_attempts=1000)
    jobs = [app.enqueue("ok", {"value": n}) for n in range(3)]
    flush_until(app, lambda: len(deliveries(app)) == 3 and all(one.attempts > 2 for one in deliveries(app)))
    assert all(app.find(job.id).state is State.COMPLETED for job in jobs)

    with receiver(port) as back:
        flush_until(app, lambda: state(app) == [State.COMPLETED] * 3)

        assert sorted(Judge(secret).verify(got.body, got.headers)["data"]["payload"]["result"] for got in back.got) == [
            0, 1, 2,
        ]  # fmt: skip


def test_a_delivery_that_nobody_takes_is_buried_and_found_by_its_tag_and_harms_no_job(app, there, add):
    add(max_attempts=2)
    there.answer(500, 500)
    job = app.enqueue("ok")

    flush_until(app, lambda: state(app) == [State.BURIED])

    assert app.find(job.id).state is State.COMPLETED
    assert "localhost answered 500" in said(app)
    app.retry(deliveries(app)[0].id)
    app.worker().flush()
    assert len({got.id for got in there.got}) == 1


def _date() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=2), usegmt=True)


@pytest.mark.parametrize(("status", "waits"), [(429, lambda: "120"), (503, _date)])
def test_a_receiver_that_asks_for_time_gets_it(app, there, add, status, waits):
    add()
    there.answer(status, headers={"Retry-After": waits()})
    app.enqueue("ok")

    app.worker().flush()

    [delivery] = deliveries(app)
    assert delivery.state is State.PENDING
    assert 100 < (delivery.available_at - datetime.now(UTC)).total_seconds() < 130


@pytest.mark.parametrize("said", ["0", "2", "Mon, 01 Jan 2001 00:00:00 GMT"])
def test_a_receiver_that_asks_for_less_than_the_back_off_is_left_alone_for_as_long_as_that(
    app, there, add, said
):
    add(backoff=[0, 300])
    there.answer(503, 503, headers={"Retry-After": said})
    app.enqueue("ok")

    flush_until(app, lambda: len(there.got) == 2)

    [delivery] = deliveries(app)
    assert (delivery.state, delivery.attempts) == (State.PENDING, 2)
    assert 250 < (delivery.available_at - datetime.now(UTC)).total_seconds() <= 300


@pytest.mark.parametrize("said", ["soon", "-5", "Mon, 99 Foo 2030", "9" * 400, "١٢"])
def test_a_wish_to_wait_that_cannot_be_read_does_no_harm(app, there, add, said):
    add()
    there.answer(503, headers={"Retry-After": said.encode().decode("latin-1")})
    app.enqueue("ok")

    app.worker().flush()

    [delivery] = deliveries(app)
    assert delivery.attempts == 1
    assert (delivery.available_at - datetime.now(UTC)).total_seconds() <= 86_400


def test_410_disables_the_webhook_until_somebody_resumes_it(app, there, add):
    add()
    there.answer(410)
    app.enqueue("ok")
    app.worker().flush()
    app.enqueue("ok")
    app.worker().flush()

    hook = app.webhooks.find("hook")
    assert (hook.paused_at is not None, hook.pause_reason) == (True, "the receiver answered 410 Gone")
    assert state(app) == [State.BURIED]
    assert app.webhooks.resume("hook")
    app.enqueue("ok")
    app.worker().flush()
    assert len(there.got) == 2


def test_a_redirect_is_not_followed(app, there, add):
    add(max_attempts=1)
    there.answer(307, headers={"Location": there.url.replace("hook", "elsewhere")})
    app.enqueue("ok")

    app.worker().flush()

    assert [got.path for got in there.got] == ["/hook?a=1"]
    assert "answered 307: a redirect" in said(app)


def answering(answer: bytes) -> tuple[socket.socket, threading.Thread]:
    """A receiver that sends these bytes to the first who asks, and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server.accept()[0] as one:
            one.recv(65_536)
            one.sendall(answer)
            one.shutdown(socket.SHUT_WR)
            while one.recv(65_536):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return server, thread


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"\x1b[2J\x00\x07\xff nonsense\r\n\r\n", "localhost answered what is not HTTP: BadStatusLine, "),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200, "localhost answered what is not HTTP: HTTPException, "),
        (b"", "localhost closed the connection without an answer"),
    ],
)
def test_an_answer_that_is_nonsense_is_told_as_such_and_printable(app, add, answer, told):
    server, thread = answering(answer)
    with server:
        add(url=f"http://localhost:{server.getsockname()[1]}/", max_attempts=1)
        app.enqueue("ok")

        app.worker().flush()

        thread.join(30)
    assert said(app).startswith(told)
    assert said(app).isprintable()


def test_an_endless_answer_is_not_read(app, there, add):
    add()
    there.body = b"x" * (64 << 20)
    there.answer(200)
    app.enqueue("ok")

    app.worker().flush()

    assert state(app) == [State.COMPLETED]
    assert app.handlers.keys() == {"ok", "fail"}


@pytest.mark.parametrize("drip", [False, True])
def test_a_slow_receiver_is_not_waited_for_longer_than_the_limit(database, there, drip):
    app = Queuety(database, webhook_timeout=1)
    app.webhooks.add("hook", there.url, allow_private=True)
    there.hold.clear()
    there.drip = drip

    tried = app.webhooks.test("hook")

    app.close()
    assert (tried.ok, tried.status) == (False, None)
    assert tried.error == "localhost did not answer within 1 s"
    assert tried.took_ms < 10_000  # the receiver would take for ever


def test_who_is_killed_while_delivering_delivers_again_under_the_same_id(app, there, add, pool):
    add()
    there.hold.clear()
    running = pool()
    app.enqueue("steps", {"count": 1})
    until(lambda: there.got, 30, running.log())

    for one in running.workers():
        os.kill(one.pid, signal.SIGKILL)
    until(lambda: deliveries(app)[0].worker is None or len(there.got) > 1, 30, running.log())
    there.hold.set()

    until(lambda: state(app) == [State.COMPLETED], 30, running.log())
    assert len(there.got) == 2
    assert len({got.id for got in there.got}) == 1


def test_no_more_deliveries_run_at_a_time_than_allowed(app, there, add, pool):
    add(concurrency=1)
    there.hold.clear()
    running = pool("--workers=3")
    app.enqueue_many(("steps", {"count": 1}) for _ in range(4))

    until(lambda: len(deliveries(app)) == 4 and there.got, 30, running.log())
    time.sleep(0.5)  # others would have begun by now

    assert len(there.got) == 1
    there.hold.set()
    until(lambda: len(there.got) == 4, 30, running.log())


# ── pausing and removing ──────────────────────────────────────────────────────────────────────────


def test_what_ends_during_a_pause_is_not_told_and_what_was_on_its_way_waits(app, there, add):
    add()
    app.cancel(app.enqueue("ok").id)
    app.webhooks.pause("hook", reason="the receiver moves")
    app.enqueue("ok")
    app.worker().flush()
    assert (there.got, state(app)) == ([], [State.PENDING])

    assert app.webhooks.resume("hook")
    app.worker().flush()

    assert [got.json["type"] for got in there.got] == ["job.canceled"]
    assert not app.webhooks.resume("hook")


def test_deliveries_of_a_webhook_that_was_removed_are_cancelled(app, there, add):
    add()
    app.cancel(app.enqueue("ok").id)

    assert app.webhooks.remove("hook").name == "hook"
    app.worker().flush()

    assert (there.got, state(app)) == ([], [State.CANCELLED])


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────


def test_during_a_rotation_both_secrets_sign_and_afterwards_only_the_new_one(app, there, add, conn):
    old = add()
    new = app.webhooks.rotate("hook", overlap="1h").secret
    app.enqueue("ok")
    app.worker().flush()
    conn.execute("UPDATE queuety.webhooks SET old_secret_until = now() - interval '1 second'")
    app.enqueue("ok")
    app.worker().flush()

    during, after = there.got
    Judge(old).verify(during.body, during.headers)
    Judge(new).verify(during.body, during.headers)
    Judge(new).verify(after.body, after.headers)
    with pytest.raises(WebhookVerificationError):
        Judge(old).verify(after.body, after.headers)
    assert app.webhooks.find("hook").rotating_until is None


def test_a_rotation_without_overlap_forgets_the_old_secret_at_once(app, there, add):
    old = add()
    app.webhooks.rotate("hook", overlap=0)
    app.enqueue("ok")
    app.worker().flush()

    [got] = there.got
    with pytest.raises(WebhookVerificationError):
        Judge(old).verify(got.body, got.headers)


def test_a_secret_stands_in_no_job_no_list_and_no_repr(app, there, add):
    secret = add(max_attempts=1)
    there.answer(500)
    app.enqueue("ok")
    app.worker().flush()
    made = app.webhooks.rotate("hook")

    [delivery] = deliveries(app)
    shown = f"{delivery!r} {app.webhooks.list()!r} {made!r} {app.events(delivery.id)!r}"

    for one in (secret, made.secret):
        assert one.removeprefix("whsec_") not in shown


@pytest.mark.parametrize("secret", ["abc", "whsec_", "whsec_YWJj", "whsec_!!!", "whsec_" + "A" * 200, 7])
def test_a_bad_secret_is_refused_unseen(app, add, secret):
    with pytest.raises(UsageError) as caught:
        add(secret=secret)

    assert str(secret).removeprefix("whsec_") not in str(caught.value) or secret == "whsec_"
    assert app.webhooks.list() == []


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "", "hook", "ftp://example.org/", "http://", "http:///x", "http://user:pa55word@example.org/", "http://example.org/#x",
        "http://example.org:0/", "http://example.org:99999/", "http://example.org/a b", "http://example.org/é",
        "http://example.org\\@evil.org/", "http://[::1", "http://exam\nple.org/", "http://" + "x" * 3000, None,
    ],
)  # fmt: skip
def test_urls_that_cannot_be_meant_are_refused(app, add, url):
    with pytest.raises(UsageError) as caught:
        app.webhooks.add("hook", url)

    assert "pa55word" not in str(caught.value)
    assert app.webhooks.list() == []


@pytest.mark.parametrize(
    "given",
    [
        {"events": ["job.started"]}, {"events": ["completed"]}, {"events": []}, {"events": "job.failed"},
        {"handlers": ["a b"]}, {"handlers": "ok"}, {"queues": ["*"]}, {"tags": [""]}, {"concurrency": 0},
        {"max_attempts": 0}, {"deliver_on": "a,b"}, {"backoff": "often"}, {"headers": {"Host": "x"}},
        {"headers": {"webhook-id": "x"}}, {"headers": {"A B": "x"}}, {"headers": {"A": "x\r\nB: y"}},
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_written(app, add, given):
    with pytest.raises(UsageError):
        add(**given)

    assert app.webhooks.list() == []


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 201])
def test_names_pass_the_one_validator(app, add, name):
    with pytest.raises(UsageError):
        add(name)


def test_a_name_is_given_once_and_an_unknown_one_is_told(app, add):
    add()

    with pytest.raises(WebhookExists):
        add()
    for verb in ("find", "remove", "rotate", "pause", "resume", "test"):
        with pytest.raises(WebhookNotFound, match="'other'"):
            getattr(app.webhooks, verb)("other")


def test_names_of_built_in_handlers_are_nobody_else_s(app):
    with pytest.raises(UsageError, match=re.escape("begins with queuety.")):
        app.job(name="queuety.mine")(print)
    with pytest.raises(UsageError, match=re.escape("begins with queuety.")):
        app.enqueue("queuety.webhook", {"webhook": "hook", "message_id": "x", "message": {}})


def test_what_may_be_told_is_what_streams_call_an_end():
    assert EVENTS == ("job.completed", "job.failed", "job.canceled")


def test_a_worker_that_delivers_nothing_imports_no_http():
    script = """
import sys, queuety.process.worker, queuety.process.builtin
print({"http.client", "http.server", "urllib.request"} & set(sys.modules))
"""

    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "set()"


def test_a_body_is_the_same_bytes_whenever_it_is_made():
    message = post.Message("msg_1", {"type": "x", "data": {"b": 1.0, "a": "é"}})

    assert message.body == '{"type":"x","data":{"b":1.0,"a":"é"}}'.encode()
