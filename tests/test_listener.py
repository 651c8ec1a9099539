"""The HTTP server in the supervisor's loop: right answers, and clients that cannot harm it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from queuety.errors import UsageError
from queuety.process.listener import HEAD, LONGEST_S, MOST, Answer, Listener
from queuety.process.wake import Waker
from tests.daemon import until

LARGE = "x" * 6_000_000


def answer(path: str, accept: str) -> Answer | None:
    texts = {"/ok": "ok\n", "/accept": accept, "/large": LARGE}
    return Answer(HTTPStatus.OK, texts[path]) if path in texts else None


class Served:
    """A listener in a loop of its own thread; `now` may be set ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.turns = 0
        self.longest = 0.0
        self.over = False
        self.listener = Listener("127.0.0.1:0", answer)
        self.waker = Waker([])
        signal.set_wakeup_fd(-1)
        self.listener.start(self.waker)
        self.host, _, port = self.listener.address.rpartition(":")
        self.port = int(port)
        self.thread = threading.Thread(target=self.loop)
        self.thread.start()

    def loop(self) -> None:
        while not self.over:
            _, ready = self.waker.wait(0.02)
            began = time.monotonic()
            self.listener.turn(ready, began + self.ahead)
            self.longest = max(self.longest, time.monotonic() - began)
            self.turns += 1

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=10)

    def ask(self, raw: bytes) -> bytes:
        with self.connect() as sock:
            sock.sendall(raw)
            return read(sock)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(self.host, self.port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def read(sock: socket.socket) -> bytes:
    parts = []
    while chunk := sock.recv(65536):
        parts.append(chunk)
    return b"".join(parts)


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.over = True
    one.thread.join()
    one.listener.close()


def test_a_path_is_answered(served: Served):
    assert served.get("/ok") == (200, b"ok\n")
    assert served.get("/ok?verbose=1") == (200, b"ok\n")


def test_what_is_not_there_is_told_so(served: Served):
    status, body = served.get("/secret")

    assert status == 404
    assert b"/metrics" in body


def test_head_has_no_body_but_its_length(served: Served):
    said = served.ask(b"HEAD /ok HTTP/1.1\r\nHost: x\r\n\r\n")

    head, _, body = said.partition(b"\r\n\r\n")
    assert b"Content-Length: 3" in head
    assert body == b""


def test_the_accept_header_reaches_the_answer_in_any_case(served: Served):
    said = served.ask(b"GET /accept HTTP/1.0\r\naCCept: one\r\nAccept: two\r\n\r\n")

    assert said.endswith(b" one, two")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "x"])
def test_only_reading_is_allowed(served: Served, method: str):
    said = served.ask(f"{method} /ok HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".encode())

    assert said.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, HEAD" in said


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"GET /ok\r\n\r\n",
        b"GET ok HTTP/1.1\r\n\r\n",
        b"GET /ok HTTP/2.0\r\n\r\n",
        b"GET  /ok HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\xff\xfe\x00\x00\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(served: Served, raw: bytes):
    assert served.ask(raw).startswith(b"HTTP/1.1 400 ")


def test_a_request_may_come_byte_by_byte(served: Served):
    with served.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /ok HTTP/1.1\r\n\r\n":
            sock.sendall(bytes([byte]))

        assert read(sock).endswith(b"ok\n")


def test_a_head_without_an_end_is_refused_and_not_kept(served: Served):
    with served.connect() as sock:
        sock.sendall(b"GET /ok HTTP/1.1\r\nX: " + b"y" * HEAD)

        assert read(sock).startswith(b"HTTP/1.1 431 ")


def test_a_large_answer_arrives_whole_at_a_slow_reader(served: Served):
    with served.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        until(lambda: sock.recv(1, socket.MSG_PEEK), what="the begin of the answer")
        assert served.get("/ok") == (200, b"ok\n")  # others do not wait for it

        said = read(sock)

    assert said.endswith(LARGE.encode())


def test_silent_clients_do_not_keep_others_out(served: Served):
    silent = [served.connect() for _ in range(3 * MOST)]

    assert served.get("/ok") == (200, b"ok\n")

    assert len(served.listener._clients) <= MOST
    for sock in silent:
        sock.close()


def test_a_client_that_takes_too_long_is_dropped(served: Served):
    with served.connect() as sock:
        sock.sendall(b"GET /ok HTTP/1.1\r\nX:")
        until(lambda: served.listener._clients, what="the client")

        served.ahead = LONGEST_S + 1

        assert sock.recv(1) == b""
    assert not served.listener._clients


def test_one_that_stops_reading_its_answer_is_dropped(served: Served):
    with served.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        until(lambda: any(one.left for one in served.listener._clients.values()), what="an unsent rest")

        served.ahead = LONGEST_S + 1

        until(lambda: not served.listener._clients, what="nobody")


def test_a_loop_with_idle_clients_sleeps(served: Served):
    idle = [served.connect() for _ in range(5)]
    answered = served.connect()
    answered.sendall(b"GET /ok HTTP/1.1\r\n\r\n")
    read(answered)  # and stays open
    before, since = served.turns, time.monotonic()
    time.sleep(0.5)

    turns, seconds = served.turns - before, time.monotonic() - since

    assert turns <= seconds / 0.02 + 10
    for sock in [*idle, answered]:
        sock.close()


def test_clients_that_reset_do_no_harm(served: Served):
    for _ in range(20):
        sock = served.connect()
        sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    assert served.get("/ok") == (200, b"ok\n")
    until(lambda: not served.listener._clients, what="nobody")


def test_a_taken_address_is_refused_by_name(served: Served):
    with pytest.raises(UsageError, match=f"127.0.0.1:{served.port}"):
        Listener(f"127.0.0.1:{served.port}", answer)


def test_one_without_descriptors_listens_again_later(served: Served):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sock = socket.socket()
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        sock.connect((served.host, served.port))
        until(lambda: served.listener._paused_until, what="a pause")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    sock.sendall(b"GET /ok HTTP/1.1\r\n\r\n")

    assert read(sock).endswith(b"ok\n")
    sock.close()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_loopback_is_known(address: str):
    try:
        listener = Listener(address, answer)
    except UsageError:
        pytest.skip(f"no {address} here")

    assert listener.loopback
    listener.close()


def test_all_addresses_are_not_loopback():
    listener = Listener(":0", answer)

    assert not listener.loopback
    assert listener.address.startswith("0.0.0.0:")
    listener.close()


def test_a_host_that_is_unknown_is_told_to_be_that():
    with pytest.raises(UsageError) as raised:
        Listener("no-such-host.invalid:9191", answer)

    assert "no-such-host.invalid:9191" in raised.value.message
    assert raised.value.hint.startswith("give an address of this host")
