"""Handlers that every worker has, whatever its application: their names begin with `queuety.`, and no others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuety.delivery.job import Delivery
from queuety.handler import Handler, Options
from queuety.store.webhooks import HANDLER

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.process.plan import Registry

LOOK_UP_S = 30.0  # for a name server, which no other limit covers


def registry(app: Queuety) -> Registry:
    """The application's handlers and the built-in ones."""
    limit_s = app.settings.webhook_timeout + LOOK_UP_S
    deliver: Handler[..., Any] = Handler(app, Delivery(app).run, HANDLER, Options(timeout_s=limit_s))
    return {**app.handlers, HANDLER: deliver}
