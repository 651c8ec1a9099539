"""A trace goes on from the enqueue through all runs of its job, and costs those who have none nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queuety import Queuety, tracing
from queuety.policy.retry import Backoff
from queuety.store.connect import Connection
from tests import ROOT
from tests.daemon import daemon, until

trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk.trace")

APP = "tests.apps.traced:app"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def within() -> Any:
    """The rest of the test is within a span of somebody's."""
    from opentelemetry import context

    span = trace.NonRecordingSpan(
        trace.SpanContext(
            int(TRACE, 16),
            int(PARENT, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(1),
            trace_state=trace.TraceState([("shop", "42")]),
        )
    )
    token = context.attach(trace.set_span_in_context(span))
    yield
    context.detach(token)


def spans_of(database: str, tmp_path: Path, job: Any) -> list[dict[str, Any]]:
    """Spans that a pool ended until the job was done."""
    file = tmp_path / "spans"
    environment = {"QUEUETY_TEST_SPANS": str(file)}
    with daemon(database, app=APP, log=tmp_path / "log", env=environment) as pool:
        until(lambda: job.state() in ("completed", "buried"), what="an end")
        assert pool.stop() == 0
        assert "Traceback" not in pool.log()
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_run_is_a_span_of_the_trace_in_which_the_job_was_enqueued(
    database: str, tmp_path: Path, within: None
):
    job = Queuety(database).enqueue("once_more", {"attempt": 2}, backoff=[0.05])

    spans = spans_of(database, tmp_path, job)

    runs = [one for one in spans if one["kind"] == "CONSUMER"]
    assert [(one["trace"], one["parent"], one["name"]) for one in runs] == [
        (TRACE, PARENT, "process default")
    ] * 2
    assert [one["status"] for one in runs] == ["ERROR", "UNSET"]
    first, second = (one["attributes"] for one in runs)
    assert first["error.type"] == "ConnectionError"
    assert (first["queuety.job.attempt"], second["queuety.job.attempt"]) == (1, 2)
    assert (first["queuety.job.outcome"], second["queuety.job.outcome"]) == ("raised", "returned")
    assert second["messaging.message.id"] == str(job.id)
    assert second["messaging.destination.name"] == "default"
    assert second["queuety.job.handler"] == "once_more"
    inside = {one["name"]: one["parent"] for one in spans if one["name"].startswith("inside")}
    assert inside == {"inside 1": runs[0]["span"], "inside 2": runs[1]["span"]}


def test_spans_inside_a_coroutine_belong_to_its_run(database: str, tmp_path: Path, within: None):
    handles = [Queuety(database).enqueue("later"), Queuety(database).enqueue("later")]

    spans = spans_of(database, tmp_path, handles[1])

    runs = [one["span"] for one in spans if one["kind"] == "CONSUMER"]
    assert [one["parent"] for one in spans if one["name"] == "inside"] == runs


def test_without_a_trace_a_run_begins_one(database: str, tmp_path: Path):
    job = Queuety(database).enqueue("once_more", {"attempt": 1})

    [run] = [one for one in spans_of(database, tmp_path, job) if one["kind"] == "CONSUMER"]

    assert run["parent"] is None


def test_neither_payload_nor_back_off_are_changed_by_a_trace(database: str, tmp_path: Path, within: None):
    app = Queuety(database)
    job = app.enqueue("payload_of", {"a": 1})

    spans_of(database, tmp_path, job)

    assert job.result() == {"a": 1}
    assert Backoff.from_json(
        tracing.carrying(None, {"traceparent": "x"}), Backoff.steps([7])
    ) == Backoff.steps([7])
    own = tracing.carrying(Backoff.steps([5]).to_json(), {"traceparent": "x"})
    assert Backoff.from_json(own) == Backoff.steps([5])


@pytest.mark.parametrize("many", [False, True])
def test_a_trace_is_kept_with_the_job_in_one_and_in_bulk(
    database: str, conn: Connection, within: None, many: bool
):
    app = Queuety(database)

    @app.job
    def send() -> None: ...

    if many:
        send.enqueue_many([{}, {}])
    else:
        send.enqueue()
        send.enqueue()

    rows = conn.execute("SELECT backoff FROM queuety.jobs").fetchall()
    carried = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "shop=42"}
    assert rows == [({"trace": carried},)] * 2


def test_a_trace_does_not_stay_with_the_handler(database: str, conn: Connection):
    from opentelemetry import context

    app = Queuety(database)

    @app.job
    def send() -> None: ...

    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True))
    token = context.attach(trace.set_span_in_context(span))
    send.enqueue()
    context.detach(token)

    send.enqueue()

    rows = conn.execute("SELECT backoff IS NULL FROM queuety.jobs ORDER BY id").fetchall()
    assert rows == [(False,), (True,)]


def test_nothing_is_imported_where_the_application_does_not_use_it():
    script = """
import sys
import queuety.app, queuety.process.worker, queuety.tracing
assert queuety.tracing.current() is None and queuety.tracing.begin(None) is None
queuety.tracing.flush(1)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert said.stdout.strip() == "[]"
