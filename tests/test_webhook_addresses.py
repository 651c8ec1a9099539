"""Where deliveries may go: public addresses, and the one that was looked at; with certificates that hold."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from queuety import Queuety, State
from queuety.delivery import address, post
from queuety.delivery.address import AddressRefused
from queuety.errors import UsageError
from tests.receivers import Receiver, receiver

PUBLIC = "93.184.216.34"


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database, max_attempts=1)
    queue.job(name="ok")(lambda: None)
    yield queue
    queue.close()


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


def answers(monkeypatch: pytest.MonkeyPatch, *found: list[str]) -> None:
    """Let the name server answer so, one list of addresses after the other; the last one for ever."""
    left = list(found)

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        now = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (one, port)) for one in now]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    "ip",
    [
        "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1", "2001:db8::1",
        "64:ff9b:1::1", "192.88.99.1", "2002:c058:6301::",
    ],
)  # fmt: skip
def test_addresses_that_are_not_the_world_s_are_known(ip):
    assert address.private(ip)


@pytest.mark.parametrize(
    "ip", [PUBLIC, "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_addresses_of_the_world_are_let_through(ip):
    assert address.private(ip) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://2130706433/", "http://127.1/",
        "http://0x7f.1/", "http://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest", "http://10.0.0.7:8080/",
    ],
)  # fmt: skip
def test_a_webhook_of_our_own_network_is_refused_where_it_is_made(app, url):
    with pytest.raises(UsageError, match="--allow-private"):
        app.webhooks.add("hook", url)

    assert app.webhooks.list() == []


@pytest.mark.parametrize("host", ["a..b", "x" * 70, f"é{'x' * 70}.example.org", ".", ".a"])
def test_a_host_that_cannot_be_a_name_is_refused(app, host):
    with pytest.raises(UsageError, match="cannot be a name"):
        app.webhooks.add("hook", f"http://{host}/", allow_private=True)

    assert app.webhooks.list() == []


def test_a_name_that_stands_for_a_private_address_is_refused(app, monkeypatch):
    answers(monkeypatch, [PUBLIC, "192.168.0.1"])

    with pytest.raises(UsageError, match=r"192\.168\.0\.1, a private address"):
        app.webhooks.add("hook", "https://rebind.example.org/")


def test_a_name_that_cannot_be_found_now_is_accepted(app, monkeypatch):
    def nothing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nothing)

    made = app.webhooks.add("hook", "https://later.example.org/")

    assert made.unfound == "later.example.org"
    tried = app.webhooks.test("hook")
    assert "later.example.org cannot be reached" in (tried.error or "")


def test_each_delivery_looks_again(app, there, monkeypatch):
    answers(monkeypatch, [PUBLIC], ["127.0.0.1"])
    app.webhooks.add("hook", f"http://rebind.example.org:{there.port}/", max_attempts=1)
    app.enqueue("ok")

    app.worker().flush()

    [delivery] = app.jobs(tag="webhook:hook")
    assert delivery.state is State.BURIED
    assert "127.0.0.1, the machine itself" in delivery.error["message"]
    assert there.got == []


def test_a_name_is_asked_once_and_the_address_that_was_looked_at_is_taken(there, monkeypatch):
    seen: list[Any] = []
    answers(monkeypatch, [PUBLIC], ["127.0.0.1"])

    def connect(_: Any, where: Any) -> None:
        seen.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)

    with pytest.raises(post.DeliveryFailed):
        post.post(
            f"http://rebind.example.org:{there.port}/", post.Message("msg_1", {}), ["whsec_" + "A" * 32]
        )

    assert seen == [(PUBLIC, there.port)]


def test_private_addresses_are_allowed_by_setting(database, there, monkeypatch):
    app = Queuety(database, webhook_allow_private=True)
    app.webhooks.add("hook", there.url)

    tried = app.webhooks.test("hook")

    app.close()
    assert (tried.ok, tried.status) == (True, 204)
    assert there.got[0].json["type"] == "webhook.test"


# ── certificates ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[trustme.CA]:
    """One that this process trusts."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    post._context.cache_clear()
    yield ca
    post._context.cache_clear()


def _speaking_for(ca: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    return context


def test_https_is_spoken_with_whom_the_certificate_names(app, authority):
    with receiver(context=_speaking_for(authority, "localhost")) as there:
        app.webhooks.add("hook", there.url, allow_private=True)

        tried = app.webhooks.test("hook")

        assert tried.ok, tried.error
        assert there.got[0].headers["host"] == f"localhost:{there.port}"


@pytest.mark.parametrize("name", ["localhost", "example.org"])
def test_a_certificate_that_does_not_hold_is_refused(app, authority, name):
    ca = trustme.CA() if name == "localhost" else authority
    with receiver(context=_speaking_for(ca, name)) as there:
        app.webhooks.add("hook", there.url, allow_private=True)

        tried = app.webhooks.test("hook")

        assert "the certificate of localhost does not hold" in (tried.error or "")
        assert there.got == []


def test_refused_says_why():
    with pytest.raises(AddressRefused, match=r"^169\.254\.169\.254 is a link-local"):
        address.resolve(address.target("http://169.254.169.254/"), allow_private=False)
