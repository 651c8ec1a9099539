"""From the call to the handler and back: what arrives is what was sent, and every end can be stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest

from queuety import Queuety
from queuety.errors import PayloadError, UsageError
from tests import ROOT
from tests.apps import data
from tests.daemon import Daemon, daemon, read_ledger, until

APP = "tests.apps.data:app"
WORDS = "한글 \U0001f600 שלום ‮ é \t ' \" \\ \\u0000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrival")


@pytest.fixture(scope="module")
def pool(shared: str, folder: Path) -> Iterator[Daemon]:
    """One worker for all tests here, on a host that speaks nothing but ASCII."""
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with daemon(
        shared, "--max-memory=0", app=APP, ledger=folder / "ledger", log=folder / "log", env=env
    ) as running:
        running.ready(1)
        yield running
        assert running.stop() == 0


@pytest.fixture
def app(shared: str, pool: Daemon) -> Iterator[Queuety]:
    queue = Queuety(shared)
    yield queue
    queue.close()


@pytest.fixture
def there(shared: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@pytest.fixture
def starts(folder: Path) -> Any:
    return lambda job: [
        one for one in read_ledger(folder / "ledger") if one.job == job.id and one.what == "start"
    ]


# ── payloads ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "A": 2, "": 3, "한글": 4},
        2**63,
        -(2**63),
        10**40,
        -0.0,
        1e308,
        5e-324,
        0.1 + 0.2,
        1.0,
        "한글",
        WORDS,
        "\ufffe\uffff\U0010ffff",
        "\x01\x1f\x7f",
        "%s %(a)s %% {} $1 :name ?",
        "C:\\new\\table",
        [[], {}, None, True, False, "", 0],
        {"nested": [{"deep": [{"deeper": [1, [2, [3]]]}]}]},
        "x" * 500_000,
        list(range(10_000)),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "backslashreplace").decode(),
)
def test_what_arrives_is_what_was_sent(app, value):
    arrived = app.enqueue("echo", {"value": value}).result(20)

    assert repr(arrived) == repr(value)


def test_the_order_of_keys_is_kept_and_so_is_depth(app):
    value: Any = OrderedDict([("z", 1), ("a", 2), ("m", 3)])
    deep: Any = "the bottom"
    for _ in range(150):
        deep = [deep]

    assert list(app.enqueue("echo", {"value": value}).result(20)) == ["z", "a", "m"]
    assert app.enqueue("echo", {"value": deep}).result(20) == deep


def test_what_is_sent_in_bulk_arrives_the_same(app):
    values = [WORDS, "\\n\\t\\\\", "tab\there", "line\nbreak", "\\.", {"a\tb": "\\N"}, 10**40, -0.0]

    jobs = app.enqueue_many([("echo", {"value": value}) for value in values])

    assert repr([job.result(20) for job in jobs]) == repr(values)


def test_annotated_arguments_arrive_as_equal_values_of_the_same_types(app, shared):
    sent: dict[str, Any] = {
        "when": datetime(2030, 1, 31, 8, 0, 0, 123456, UTC),
        "day": date(1, 1, 1),
        "span": timedelta(days=-1, microseconds=1),
        "amount": Decimal("-0.10"),
        "key": UUID(int=1),
        "colour": data.Colour.BLUE,
        "point": data.Point(-0.0, 1e308),
    }
    mine = data.typed.using(connection=psycopg.connect(shared, autocommit=True))

    job = app.find(mine.enqueue(**sent).id)
    arrived = until(lambda: app.find(job.id).result, 20)

    assert arrived == {name: repr(value) for name, value in sent.items()}


@pytest.mark.parametrize(
    "value",
    [
        "a\0b",
        ["x", {"y": ["a\0b"]}],
        {"a\0b": 1},
        "\ud800",
        float("nan"),
        float("inf"),
        -float("inf"),
        Decimal("NaN"),
        Decimal("1.1"),
        datetime(2030, 1, 1, tzinfo=UTC),
        timedelta(1),
        UUID(int=1),
        {1},
        b"x",
        (1, 2),
        data.Point(1, 2),
        data.Colour.RED,
        {1: "a"},
        {True: "a"},
        pytest.param(object(), id="object()"),  # a name that every run gives it
    ],
    ids=repr,
)
def test_what_json_cannot_keep_is_refused_at_the_call_with_its_place_and_nothing_is_written(
    app, there, value
):
    before = count(there)

    for call in (
        lambda: app.enqueue("echo", {"value": value}),
        lambda: app.enqueue_many([("echo", {"value": 1}), ("echo", {"value": value})]),
        lambda: data.app.handlers["echo"].using(connection=there).enqueue(value=value),
    ):
        with pytest.raises(PayloadError, match="payload"):
            call()

    assert count(there) == before
    assert app.enqueue("echo", {"value": 1}).result(10) == 1  # the connection is still good


@pytest.mark.parametrize("option", [{"queue": "a\0b"}, {"unique_key": "a\0b"}, {"tags": ["a\0b"]}])
def test_a_nul_in_a_name_is_refused_at_the_call(app, there, option):
    before = count(there)

    with pytest.raises(UsageError, match=next(iter(option)).split("_")[0].rstrip("s")):
        app.enqueue("echo", {}, **option)

    assert count(there) == before


def test_too_deep_is_refused_at_the_call(app):
    deep: Any = 1
    for _ in range(1000):
        deep = {"a": deep}

    with pytest.raises(PayloadError, match=r"levels|deep"):
        app.enqueue("echo", {"value": deep})


def test_what_sql_writes_arrives_too(app, there):
    text = json.dumps({"handler": "echo", "payload": {"value": [WORDS, 1, 2.5, None]}})

    job_id = there.execute("SELECT queuety.enqueue(%s::jsonb)", [text]).fetchone()[0]

    assert until(lambda: app.find(job_id).result, 10) == [WORDS, 1, 2.5, None]


# ── signatures that changed ───────────────────────────────────────────────────────────────────────


def test_an_old_job_meets_a_new_signature_and_runs_when_the_old_one_is_back(database, tmp_path):
    version = tmp_path / "shop.py"
    first = "from queuety import Queuety\napp = Queuety()\n@app.job\ndef order(item: str): return item\n"
    version.write_text(first)
    queue = Queuety(database)
    flush = [
        sys.executable,
        "-m",
        "queuety.cli.main",
        "--app",
        "shop:app",
        "--database-url",
        database,
        "flush",
    ]
    job = queue.enqueue("order", {"item": "한글"}, max_attempts=1)

    version.write_text(first.replace("item: str", "product: str, amount: int").replace("return item", "pass"))
    subprocess.run(flush, cwd=tmp_path, env=environment(), check=True, timeout=30)
    buried = job.job()
    version.write_text(first)
    queue.retry(job.id)
    subprocess.run(flush, cwd=tmp_path, env=environment(), check=True, timeout=30)

    assert buried.error is not None
    assert (buried.state, buried.error["type"]) == ("buried", "TypeError")
    assert "product, amount" in buried.error["message"]
    assert (job.state(), job.job().result) == ("completed", "한글")


def environment() -> dict[str, str]:
    # Without a cache of byte code: two versions of one second and one length look alike to it.
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


# ── results ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "kind", ["object", "generator", "file", "large", "nan", "nul", "surrogate", "deep", "itself"]
)
def test_a_result_that_cannot_be_kept_is_noted_and_the_job_is_done(app, starts, kind):
    job = app.enqueue("unkept", {"kind": kind})

    ended = job.wait(20)

    assert (ended.state, ended.attempts, len(starts(job))) == ("completed", 1, 1)
    assert ended.result is None
    assert ended.error["type"] == "ResultNotKept"


def test_a_result_larger_than_the_database_takes_in_one_go_is_kept_or_noted(app, starts):
    jobs = [app.enqueue("large", {"size": 30_000_000}) for _ in range(2)]

    ended = [job.wait(60) for job in jobs]

    assert [job.state for job in ended] == ["completed"] * 2
    assert {len(starts(job)) for job in jobs} == {1}
    assert all(job.result is None or len(job.result) == 30_000_000 for job in ended)


def test_a_result_that_the_database_refuses_is_noted_and_the_job_is_done(app, there, starts):
    there.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING ERRCODE = new.result ->> 'code'; END $$"
    )
    there.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON queuety.finished_jobs FOR EACH ROW "
        "WHEN (new.result ->> 'code' <> '') EXECUTE FUNCTION refuse()"
    )
    # A text that cannot be converted, and one beyond a limit of the server's.
    jobs = [app.enqueue("echo", {"value": {"code": code}}) for code in ("22P05", "54000")]

    ended = [job.wait(10) for job in jobs]

    there.execute("DROP TRIGGER refuse ON queuety.finished_jobs")
    assert {(job.state, job.result, job.error and job.error["type"]) for job in ended} == {
        ("completed", None, "ResultNotKept")
    }
    assert {len(starts(job)) for job in jobs} == {1}


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("handler", "payload"),
    [("huge_error", {"size": 50_000_000}), ("chained_error", {"links": 100_000})],
)
def test_a_giant_error_is_stored_cut_and_the_worker_lives_and_gets_its_memory_back(
    app, pool, starts, handler, payload
):
    [worker] = pool.workers()
    before = worker.memory_info().rss
    job = app.enqueue(handler, payload, max_attempts=2, backoff=[0.1])

    ended = job.wait(30)

    assert (ended.state, ended.attempts, len(starts(job))) == ("buried", 2, 2)
    assert len(ended.error["message"]) < 5000
    assert len(ended.error.get("traceback", "")) < 20_000
    assert "…" in json.dumps(ended.error, ensure_ascii=False)
    assert [one.pid for one in pool.workers()] == [worker.pid]
    assert psutil.Process(worker.pid).memory_info().rss - before < 100_000_000


@pytest.mark.parametrize("handler", ["odd_error", "hostile_text"])
def test_an_error_that_no_database_takes_is_stored_cleaned(app, starts, handler):
    job = app.enqueue(handler, max_attempts=1)

    ended = job.wait(10)

    assert (ended.state, len(starts(job))) == ("buried", 1)
    assert ended.error["type"] in ("Odd", "ValueError")


# ── other alphabets on an ASCII host ──────────────────────────────────────────────────────────────


def test_text_of_any_alphabet_passes_through_a_host_that_speaks_ascii(app, pool):
    job = app.enqueue("talk", {"text": WORDS})

    assert job.result(10) == WORDS
    assert r"\ud55c\uae00" in pool.log()


def test_a_tag_and_a_key_of_any_alphabet_pass_through_a_host_that_speaks_ascii(app):
    job = app.enqueue("ok", queue="default", tags=["한글"], unique_key="\U0001f600 ключ")

    assert job.wait(10).tags == ("한글",)


def count(conn: Any) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone()
    return int(row[0])
