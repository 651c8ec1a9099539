"""The handler of deliveries. What it needs for HTTP is imported by the first delivery, and by no other worker."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from queuety.context import Context
from queuety.errors import JobCancelled, Retry, Snooze
from queuety.policy.retry import Backoff
from queuety.store import verbs, webhooks

if TYPE_CHECKING:
    from queuety.app import Queuety

PAUSED_S = 3600.0  # a delivery of a paused webhook looks again after so long; it is woken when the webhook is resumed


class Delivery:
    """Sends what an end has written for a webhook."""

    def __init__(self, app: Queuety) -> None:
        self._app = app

    def run(self, ctx: Context, webhook: str, message_id: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message. The secret is read here, so that no job ever holds it.

        Raises DeliveryFailed or Retry, and so is tried again; cancels itself if the webhook is gone.
        """
        with self._app._borrow() as conn:
            receiver = webhooks.receiver(conn, webhook)
            if receiver is None:
                verbs.cancel(conn, ctx.job.id)  # a run ends cancelled only if somebody has asked for it
        if receiver is None:
            raise JobCancelled(f"webhook {webhook} has been removed")
        if receiver.paused is not None:
            raise Snooze(PAUSED_S, f"webhook {webhook} is paused: {receiver.paused or 'by hand'}")
        from queuety.delivery.post import DeliveryFailed, Message, post

        began = time.monotonic()
        settings = self._app.settings
        try:
            status = post(
                receiver.url,
                Message(message_id, message),
                receiver.secrets,
                headers=receiver.headers,
                allow_private=receiver.allow_private or settings.webhook_allow_private,
                limit_s=settings.webhook_timeout,
            )
        except DeliveryFailed as error:
            if error.status == 410:
                self._disable(webhook, error)
            if error.pause_s is not None:
                # Never earlier than without that wish, or ten attempts would be used up in seconds.
                own_s = Backoff.from_json(receiver.backoff, Backoff()).delay(ctx.job.attempt, random.random())
                raise Retry(
                    f"{error.message}, and asked for {error.pause_s:g} s", after=max(own_s, error.pause_s)
                ) from None
            raise
        return {"status": status, "took_ms": round((time.monotonic() - began) * 1000, 1)}

    def _disable(self, webhook: str, error: Exception) -> None:
        """Tell nothing more to who wants to hear nothing more."""
        from queuety.errors import Permanent, WebhookNotFound

        reason = "the receiver answered 410 Gone"
        try:
            with self._app._borrow() as conn:
                webhooks.pause(conn, webhook, reason)
        except WebhookNotFound:
            pass
        raise Permanent(f"webhook {webhook} is disabled: {reason}") from error
