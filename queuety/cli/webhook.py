"""`webhook`: who is told of the ends of jobs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from queuety.cli import kinds, payloads, several
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say, talk
from queuety.errors import UsageError
from queuety.plain import moment, webhook_fields
from queuety.units import shown

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.model import Webhook

_CHECK_FAILED = 8
_LONGEST_SECRET = 4096  # bytes that are read of it

NAMES = click.argument("names", metavar="NAME…", type=kinds.WEBHOOK, nargs=-1)
SECRET = click.option(
    "--secret",
    metavar="@FILE|-",
    help="A secret, whsec_…, from a file or standard input.  [default: a new one]",
)


@click.group()
def webhook() -> None:
    """Webhooks: receivers that are told of the ends of jobs by a signed POST.

    A delivery is a job of the handler queuety.webhook, which every worker has.

    \b
    queuety webhook add shop https://shop.example.org/hooks --event=job.failed
    queuety webhook test shop
    """


@webhook.command()
@click.argument("name", type=kinds.WEBHOOK)
@click.argument("url", metavar="URL")
@click.option(
    "--event",
    "events",
    metavar="EVENT",
    multiple=True,
    help="job.completed, job.failed or job.canceled; repeatable.  [default: all]",
)
@click.option("--handler", "handlers", type=kinds.HANDLER, multiple=True, help="Only jobs of it; repeatable.")
@click.option("--queue", "queues", type=kinds.QUEUE, multiple=True, help="Only jobs of it; repeatable.")
@click.option(
    "--tag", "tags", type=kinds.TAG, multiple=True, help="Only jobs that have one of them; repeatable."
)
@SECRET
@click.option(
    "--deliver-on", type=kinds.QUEUE, metavar="QUEUE", help="The queue of the deliveries.  [default: default]"
)
@click.option("--concurrency", type=kinds.PLACES, help="Deliveries at a time, over all hosts.  [default: 2]")
@click.option("--max-attempts", type=kinds.ATTEMPTS, help="Of each delivery.  [default: 10]")
@click.option("--allow-private", is_flag=True, help="Also addresses that are not of the public internet.")
@kinds.as_json
def add(name: str, url: str, secret: str | None, json_: bool, **options: Any) -> None:
    """Tell the receiver at URL of the ends of jobs from now on, and print the secret that it checks signatures with.

    The secret is shown this once. All is checked first; a private, loopback or link-local address is refused.

    \b
    queuety webhook add orders https://example.org/hooks --event=job.failed --handler=pay
    queuety webhook add local http://127.0.0.1:8000/ --allow-private --secret=@secret.txt
    """
    given = kinds.given(options)
    with current().caller() as app:
        made = app.webhooks.add(name, url, secret=_secret(secret), **given)
        served = app.webhooks.served(made.webhook)
    if url.strip().lower().startswith("http:"):
        talk("queuety: http is not encrypted: whoever is in between can read the deliveries")
    if made.unfound is not None:
        talk(f"queuety: the host {made.unfound} cannot be found now; each delivery looks again")
    if not served:
        queue = made.webhook.deliver_on
        talk(
            f"queuety: no living worker runs deliveries from queue {queue} — start one: work --queue={queue}"
        )
    if json_:
        print_json({**webhook_fields(made.webhook), "secret": made.secret})
        return
    say(f"webhook {name} added")
    if secret is None:
        say(f"secret {made.secret}")


@webhook.command("list")
@kinds.limited()
@kinds.as_json
def listing(limit: int, json_: bool) -> None:
    """List webhooks by name. Secrets are not shown.

    \b
    queuety webhook list
    queuety jobs --tag=webhook:orders
    """
    with current().caller() as app:
        found = app.webhooks.list(limit=limit)
    if json_:
        print_json([webhook_fields(one) for one in found])
        return
    print_table(
        ["name", "url", "events", "only", "queue", "state", "note"],
        [
            (
                one.name,
                one.url,
                ",".join(event.removeprefix("job.") for event in one.events),
                _only(one),
                one.deliver_on,
                "paused" if one.paused_at else "active",
                _note(one),
            )
            for one in found
        ],
    )


@webhook.command()
@NAMES
@kinds.as_json
def remove(names: tuple[str, ...], json_: bool) -> int:
    """Remove webhooks. Their deliveries on the way are cancelled when it is their turn.

    \b
    queuety webhook remove orders
    """

    def one(app: Queuety, name: str) -> str:
        app.webhooks.remove(name)
        return "removed"

    return several.each("webhook", "name", names, one, json_)


@webhook.command()
@click.argument("name", type=kinds.WEBHOOK)
@kinds.as_json
def test(name: str, json_: bool) -> int:
    """Send a test event now, from this machine, and say the status and the time; 8 unless it was taken.

    \b
    queuety webhook test orders
    """
    with current().caller() as app:
        tried = app.webhooks.test(name)
    if json_:
        print_json(
            {
                "name": tried.name,
                "webhook_id": tried.message_id,
                "status": tried.status,
                "took_ms": tried.took_ms,
                "error": tried.error,
            }
        )
    elif tried.ok:
        say(f"webhook {name} answered {tried.status} in {tried.took_ms:g} ms")
    else:
        say(f"webhook {name} failed after {tried.took_ms:g} ms: {tried.error}")
    return 0 if tried.ok else _CHECK_FAILED


@webhook.command()
@click.argument("name", type=kinds.WEBHOOK)
@SECRET
@click.option(
    "--overlap",
    type=kinds.SECONDS,
    default="24h",
    show_default=True,
    help="The old secret signs as well for so long; 0 = not at all.",
)
@kinds.as_json
def rotate(name: str, secret: str | None, overlap: float, json_: bool) -> None:
    """Give a webhook a new secret and print it. Both sign meanwhile, so that the receiver may change when it likes.

    \b
    queuety webhook rotate orders --overlap=48h
    """
    with current().caller() as app:
        made = app.webhooks.rotate(name, overlap=overlap, secret=_secret(secret))
    if json_:
        print_json({**webhook_fields(made.webhook), "secret": made.secret})
        return
    until = made.webhook.rotating_until
    say(
        f"webhook {name} has a new secret; the old one {f'signs until {moment(until)}' if until else 'is gone'}"
    )
    if secret is None:
        say(f"secret {made.secret}")


@webhook.command()
@NAMES
@click.option("--reason", default="", help="Shown by `webhook list`.")
@kinds.as_json
def pause(names: tuple[str, ...], reason: str, json_: bool) -> int:
    """Pause webhooks: they are told nothing of what ends meanwhile; deliveries on their way wait.

    \b
    queuety webhook pause orders --reason="the receiver moves"
    """

    def one(app: Queuety, name: str) -> str:
        app.webhooks.pause(name, reason=reason)
        return "is paused"

    return several.each("webhook", "name", names, one, json_)


@webhook.command()
@NAMES
@kinds.as_json
def resume(names: tuple[str, ...], json_: bool) -> int:
    """Let webhooks go on that are paused, or that their receiver has disabled by 410 Gone.

    \b
    queuety webhook resume orders
    """

    def one(app: Queuety, name: str) -> str:
        return "goes on" if app.webhooks.resume(name) else "was not paused"

    return several.each("webhook", "name", names, one, json_)


def _secret(given: str | None) -> str | None:
    """A secret from a file or standard input: on the command line everybody on the machine could read it."""
    if given is None:
        return None
    if given != "-" and not given.startswith("@"):
        raise UsageError(
            "--secret is not given as it is: others can read command lines",
            "give --secret=@FILE, or - for standard input",
        )
    raw = payloads.opened(given.removeprefix("@")).read(_LONGEST_SECRET + 1)
    if len(raw) > _LONGEST_SECRET:
        raise UsageError(
            f"--secret={shown(given)} holds more than {_LONGEST_SECRET} bytes: that is no secret",
            "give a file that holds whsec_… and nothing else",
        )
    return payloads.decoded(raw, "--secret").removeprefix("\ufeff").strip()


def _only(one: Webhook) -> str:
    kinds_of = (("handler", one.handlers), ("queue", one.queues), ("tag", one.tags))
    return " ".join(f"{kind}={','.join(names)}" for kind, names in kinds_of if names)


def _note(one: Webhook) -> str:
    if one.paused_at:
        return one.pause_reason or ""
    return f"two secrets until {moment(one.rotating_until)}" if one.rotating_until else ""
