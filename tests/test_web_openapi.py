"""/openapi.json says what the API does: it is valid, and schemathesis finds no answer that it does not tell of."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis.specs.openapi.checks import positive_data_acceptance

from queuety import Queuety
from queuety.web import create_app, openapi
from queuety.web.table import OPERATIONS
from tests.web import client

ROUTES = {
    "POST /api/jobs", "GET /api/jobs", "GET /api/jobs/{id}", "POST /api/jobs/{id}/cancel", "POST /api/jobs/{id}/retry",
    "GET /api/jobs/{id}/events", "GET /api/events", "GET /api/queues", "POST /api/queues/{name}/pause",
    "POST /api/queues/{name}/resume", "GET /api/schedules", "POST /api/schedules/{key}/run",
    "POST /api/schedules/{key}/pause", "POST /api/schedules/{key}/resume", "GET /api/workers", "GET /metrics",
    "GET /openapi.json",
}  # fmt: skip


def test_the_description_is_valid_and_names_every_route(database: str):
    app = Queuety(database)
    with client(app) as http:
        found = http.get("/openapi.json").json()
    app.close()

    validate(found)
    told = {f"{method.upper()} {path}" for path, methods in found["paths"].items() for method in methods}
    assert told == ROUTES == {f"{one.method} {one.path}" for one in OPERATIONS}


def test_every_shape_that_is_named_is_described():
    document = openapi.document(OPERATIONS)

    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
            return own.union(*map(names, value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    assert names(document) == set(document["components"]["schemas"])


@pytest.fixture(scope="module")
def served(shared: str):
    """The description, loaded from an application with a job, a schedule and a paused queue."""
    app = Queuety(shared)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, 2)
    app.schedules.add("add", name="nightly", cron="0 3 * * *", payload={"a": 1, "b": 2})
    app.pause("mail")
    made = create_app(app, no_auth=True, hosts=["testserver"])
    yield schemathesis.openapi.from_asgi("/openapi.json", made)
    app.close()


def check(schema: Any, examples: int) -> None:
    for result in schema.get_all_operations():
        operation = result.ok()
        # A stream of events has no end while its job has none.
        polled = {"Accept": "application/json"} if "events" in operation.path else {}

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def answers_as_described(case: Any) -> None:
            # What a schema cannot say is refused, too: letters of names, options that exclude each other.
            case.call_and_validate(
                headers=polled,  # noqa: B023 - called within the turn
                excluded_checks=[positive_data_acceptance],
            )

        answers_as_described()


def test_every_answer_is_one_that_is_described(served):
    check(served, 15)


@pytest.mark.soak
def test_every_answer_is_one_that_is_described_at_length(served):
    check(served, 500)
