"""Connections that a caller hands in are taken as they are, whatever has been set on them."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, scalar_row

from queuety import Queuety, UsageError
from queuety.model import Job


def application(url: str) -> Queuety:
    app = Queuety(url)
    app.job(lambda a, b: a + b, name="add")  # type: ignore[call-overload]
    return app


@pytest.mark.parametrize("row_factory", [dict_row, scalar_row, class_row(Job)])
def test_a_connection_with_a_row_factory_of_its_own_enqueues(database, row_factory):
    app = application(database)

    with psycopg.connect(database, row_factory=row_factory) as connection:
        one = app.enqueue("add", {"a": 1, "b": 2}, unique_key="k", connection=connection)
        again = app.enqueue("add", {"a": 1, "b": 2}, unique_key="k", connection=connection)
        many = app.enqueue_many([("add", {"a": 1, "b": 2})] * 2, connection=connection)

    assert one == again
    assert app.stats().due == 1 + len(many)


def test_a_connection_with_client_side_binding_enqueues(database):
    app = application(database)

    with psycopg.connect(database, cursor_factory=psycopg.ClientCursor) as connection:
        app.enqueue("add", {"a": 1, "b": 2}, tags=["t"], delay=60, connection=connection)

    assert app.stats().later == 1


def test_a_connection_that_has_to_be_awaited_is_refused_and_nothing_is_written(database):
    app = application(database)

    async def hand_in() -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            app.enqueue("add", {"a": 1, "b": 2}, connection=connection)

    with pytest.raises(UsageError, match="AsyncConnection has to be awaited"):
        asyncio.run(hand_in())

    assert app.stats().pending == 0
