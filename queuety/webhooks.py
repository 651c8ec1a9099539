"""Webhooks in the database: who is told of the ends of jobs, made, changed and tried while everything runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from queuety.delivery import address, signature
from queuety.errors import UsageError
from queuety.limits import check_whole
from queuety.model import Webhook
from queuety.names import check_name, check_queue, quoted
from queuety.policy.retry import Backoff
from queuety.store import webhooks as stored
from queuety.units import CENTURY_S, seconds, shown

if TYPE_CHECKING:
    from queuety.app import Queuety

EVENTS = ("job.completed", "job.failed", "job.canceled")
OVERLAP_S = 86_400.0
LONGEST_NAME = 200  # of a webhook: `webhook:NAME` is the tag and the group of its deliveries
MOST_NAMES = 1000
MOST_HEADERS = 20
# Waits between attempts as the Standard Webhooks specification proposes them: three days and a half in all.
BACKOFF = Backoff.steps([5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400], jitter=0.1)
MAX_ATTEMPTS = len(BACKOFF.times) + 1

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OURS = ("connection", "content-length", "content-type", "host", "transfer-encoding", "user-agent")


@dataclass(frozen=True, slots=True)
class Secret:
    """A webhook and its new secret, which is shown this once. unfound: its host, if `add` could not find it."""

    webhook: Webhook
    secret: str = field(repr=False)
    unfound: str | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """How a test went. status: of the answer, None if there was none.  error: None if it was 2xx."""

    name: str
    message_id: str
    status: int | None
    took_ms: float
    error: str | None

    @property
    def ok(self) -> bool:
        return self.error is None


class Webhooks:
    """What `app.webhooks` is. An unknown name is a WebhookNotFound."""

    def __init__(self, app: Queuety) -> None:
        self._app = app

    def add(
        self,
        name: str,
        url: str,
        *,
        events: Iterable[str] = EVENTS,
        handlers: Iterable[str] = (),
        queues: Iterable[str] = (),
        tags: Iterable[str] = (),
        secret: str | None = None,
        deliver_on: str = "default",
        concurrency: int = 2,
        max_attempts: int = MAX_ATTEMPTS,
        backoff: object = None,
        headers: Mapping[str, str] | None = None,
        allow_private: bool = False,
    ) -> Secret:
        """Tell a receiver of the ends of jobs from now on; returns its secret, which nothing shows again.

        events: job.completed, job.failed, job.canceled.  handlers, queues, tags: only of these jobs; of tags a job
        must have one.  secret: `whsec_…`, if it is not to be made here.  deliver_on: the queue of its deliveries,
        at low priority.  concurrency: deliveries at a time over all hosts.  max_attempts, backoff: of a delivery;
        default 10, over three days and a half.  headers: sent as well.  allow_private: also addresses that are
        not of the public internet.
        All is checked first; a host that cannot be found now is accepted, and told as `unfound`: each delivery looks
        again.
        """
        hook = Webhook(
            _name(name),
            address.check_url(url),
            _events(events),
            _names("handler", handlers),
            _names("queue", queues),
            _names("tag", tags),
            check_queue(deliver_on),
            check_whole("concurrency", concurrency, 1, 1_000_000),
            check_whole("max_attempts", max_attempts, 1, 1000),
            allow_private=bool(allow_private),
        )
        sent = _headers(headers or {})
        waits = Backoff.parse(backoff, BACKOFF).to_json()
        secret = signature.new_secret() if secret is None else signature.check_secret(secret)
        unfound = _look_up(hook, hook.allow_private or self._app.settings.webhook_allow_private)
        with self._app._borrow() as conn:
            return Secret(stored.add(conn, hook, waits, sent, secret), secret, unfound)

    def remove(self, name: str) -> Webhook:
        """Remove a webhook and return what it was. Deliveries on their way are cancelled when it is their turn."""
        with self._app._borrow() as conn:
            return stored.remove(conn, name)

    def find(self, name: str) -> Webhook:
        """The webhook with this name, as it stands."""
        with self._app._borrow() as conn:
            return stored.find(conn, name)

    def list(self, *, limit: int = 100, after: str | None = None) -> Sequence[Webhook]:
        """Webhooks by name. after: the last name of the page before."""
        with self._app._borrow() as conn:
            return stored.listing(conn, after=after, limit=check_whole("limit", limit, 1, 10_000))

    def rotate(self, name: str, *, overlap: object = OVERLAP_S, secret: str | None = None) -> Secret:
        """Give a webhook a new secret and return it; the old one signs as well for `overlap`, seconds or "24h"."""
        overlap_s = seconds(overlap, minimum=0, maximum=CENTURY_S, what="overlap")
        secret = signature.new_secret() if secret is None else signature.check_secret(secret)
        with self._app._borrow() as conn:
            return Secret(stored.rotate(conn, name, secret, overlap_s), secret)

    def pause(self, name: str, *, reason: str = "") -> Webhook:
        """Tell a webhook nothing of what ends from now on; deliveries on their way wait until it is resumed."""
        with self._app._borrow() as conn:
            return stored.pause(conn, name, reason)

    def resume(self, name: str) -> bool:
        """Let a paused webhook, or one that 410 Gone has disabled, go on; False if it was not paused."""
        with self._app._borrow() as conn:
            return stored.resume(conn, name)

    def test(self, name: str) -> Tried:
        """Send an event of the type webhook.test now, from here and once, also to a paused webhook."""
        with self._app._borrow() as conn:
            hook = stored.find(conn, name)
            receiver = stored.receiver(conn, hook.name)
        if receiver is None:
            raise stored.unknown(hook.name)
        from queuety.delivery.post import DeliveryFailed, Message, post

        message = Message(f"msg_test_{time.time_ns():x}", _test_event(hook))
        settings = self._app.settings
        began = time.monotonic()
        status, failure = None, None
        try:
            status = post(
                receiver.url,
                message,
                receiver.secrets,
                headers=receiver.headers,
                allow_private=receiver.allow_private or settings.webhook_allow_private,
                limit_s=settings.webhook_timeout,
            )
        except DeliveryFailed as error:
            status, failure = error.status, error.message
        except address.AddressRefused as error:
            failure = error.message
        return Tried(hook.name, message.id, status, round((time.monotonic() - began) * 1000, 1), failure)

    def served(self, hook: Webhook) -> bool:
        """Whether a living worker would run its deliveries."""
        from queuety.store import workers

        with self._app._borrow() as conn:
            return workers.living(conn, hook.deliver_on, stored.HANDLER)


def _test_event(hook: Webhook) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"type": "webhook.test", "timestamp": at, "data": {"webhook": hook.name}}


def _name(value: object) -> str:
    name = check_name("webhook", value)
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"the webhook name has {len(name)} characters, at most {LONGEST_NAME} are possible", "shorten it"
        )
    return name


def _events(given: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_each("events", given)))
    for one in found:
        if one not in EVENTS:
            near = [event for event in EVENTS if isinstance(one, str) and event.endswith(one.lower()[-5:])]
            hint = f"did you mean {near[0]}?" if near and one else f"events are {', '.join(EVENTS)}"
            raise UsageError(f"webhooks are not told of {shown(one)}", hint)
    if not found:
        raise UsageError("a webhook needs an event", f"events are {', '.join(EVENTS)}")
    return found


def _names(kind: str, given: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(check_name(kind, one) for one in _each(f"{kind}s", given)))
    if len(found) > MOST_NAMES:
        raise UsageError(f"a webhook of {len(found)} {kind}s is not possible", f"give at most {MOST_NAMES}")
    return found


def _each(what: str, given: Iterable[Any]) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{what}={shown(given)} is no list of names", "give a list")
    return given


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers to send as well; a refusal names them and never shows what they hold."""
    if not isinstance(given, Mapping) or len(given) > MOST_HEADERS:
        raise UsageError(f"headers must be a mapping of at most {MOST_HEADERS} names to texts")
    for name, value in given.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise UsageError(f"{shown(name)} is no header's name", "use letters, digits and -")
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise UsageError(f"the header {name} is set by each delivery itself", "leave it out")
        if not isinstance(value, str) or len(value) > 4096 or not _VALUE.fullmatch(value):
            raise UsageError(f"the header {name} holds what a header cannot", "give printable ASCII")
    return dict(given)


def _look_up(hook: Webhook, allow_private: bool) -> str | None:
    """Refuse a receiver of our own network now, if it can be told now; returns its host if that cannot be found."""
    where = address.target(hook.url)
    try:
        address.resolve(where, allow_private=allow_private)
    except address.AddressRefused as error:
        raise UsageError(f"webhook {quoted(hook.name)}: {error.message}", error.hint) from None
    except OSError:
        return where.host  # perhaps only here and now: each delivery looks again
    return None
