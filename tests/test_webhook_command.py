"""`queuety webhook`: what it says, what it refuses and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook as Judge

from tests import ROOT
from tests.receivers import Receiver, receiver

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def webhook(database: str) -> Command:
    def run(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "queuety.cli.main", "webhook", *arguments],
            capture_output=True,
            text=True,
            input=said,
            cwd=ROOT,
            env={**os.environ, "QUEUETY_DATABASE_URL": database},
        )

    return run


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


def test_a_webhook_is_added_listed_tested_and_removed(webhook, there):
    added = webhook(
        "add", "orders", there.url, "--event=job.failed", "--handler=pay", "--allow-private", "--json"
    )
    secret = json.loads(added.stdout)["secret"]
    [listed] = json.loads(webhook("list", "--json").stdout)
    tried = webhook("test", "orders")
    removed = webhook("remove", "orders")

    assert added.returncode == 0, added.stderr
    assert (listed["events"], listed["handlers"], "secret" in listed) == (["job.failed"], ["pay"], False)
    assert tried.returncode == 0
    assert tried.stdout.startswith("webhook orders answered 204 in ")
    [got] = there.got
    assert Judge(secret).verify(got.body, got.headers)["type"] == "webhook.test"
    assert removed.stdout == "webhook orders removed\n"
    assert json.loads(webhook("list", "--json").stdout) == []


def test_a_new_secret_is_shown_once_and_never_again(webhook, there):
    added = webhook("add", "orders", there.url, "--allow-private")
    [line] = [line for line in added.stdout.splitlines() if line.startswith("secret ")]
    rotated = webhook("rotate", "orders", "--overlap=1h")

    secret = line.removeprefix("secret ")
    assert secret.startswith("whsec_")
    assert secret not in rotated.stdout + webhook("list").stdout + webhook("list", "--json").stdout
    assert "the old one signs until" in rotated.stdout
    assert "two secrets until" in webhook("list").stdout


def test_a_secret_of_one_s_own_comes_from_a_file_or_standard_input(webhook, there, tmp_path: Path):
    secret = "whsec_" + "A" * 32
    (tmp_path / "secret").write_text(secret + "\n")

    by_file = webhook("add", "one", there.url, "--allow-private", f"--secret=@{tmp_path / 'secret'}")
    by_input = webhook("add", "two", there.url, "--allow-private", "--secret=-", said=secret)
    by_argument = webhook("add", "three", there.url, "--allow-private", f"--secret={secret}")

    assert (by_file.returncode, by_input.returncode, by_argument.returncode) == (0, 0, 2)
    for said in (by_file, by_input, by_argument):
        assert secret not in said.stdout + said.stderr
    webhook("test", "one")
    Judge(secret).verify(there.got[0].body, there.got[0].headers)


def test_a_secret_is_not_read_without_end(webhook, there):
    endless = webhook("add", "orders", there.url, "--allow-private", "--secret=@/dev/zero")

    assert endless.returncode == 2
    assert "holds more than 4096 bytes" in endless.stderr


def test_a_name_that_cannot_be_found_now_is_told(webhook):
    added = webhook("add", "orders", "https://later.invalid/")

    assert added.returncode == 0
    assert "the host later.invalid cannot be found now" in added.stderr


def test_a_host_that_cannot_be_a_name_is_refused_with_2(webhook):
    assert webhook("add", "orders", "http://a..b/").returncode == 2


def test_a_test_that_is_not_taken_ends_with_8(webhook, there):
    webhook("add", "orders", there.url, "--allow-private")
    there.answer(500)

    tried = webhook("test", "orders", "--json")

    assert tried.returncode == 8
    told = json.loads(tried.stdout)
    assert (told["status"], told["error"]) == (500, "localhost answered 500")


def test_private_addresses_and_bad_events_are_refused_with_2(webhook, there):
    private = webhook("add", "orders", there.url)
    event = webhook("add", "orders", there.url, "--event=completed", "--allow-private")

    assert (private.returncode, event.returncode) == (2, 2)
    assert "--allow-private" in private.stderr
    assert "did you mean job.completed?" in event.stderr


def test_unknown_and_taken_names_have_the_documented_codes(webhook, there):
    webhook("add", "orders", there.url, "--allow-private")

    assert webhook("add", "orders", there.url, "--allow-private").returncode == 6
    assert webhook("test", "other").returncode == 5
    assert webhook("rotate", "other").returncode == 5
    assert webhook("remove", "other").returncode == 5
    assert webhook("pause", "orders", "other").returncode == 7
    assert "webhook orders goes on" in webhook("resume", "orders").stdout


def test_who_adds_a_webhook_is_told_that_nobody_delivers(webhook, there):
    added = webhook("add", "orders", there.url, "--allow-private", "--deliver-on=hooks")

    assert "no living worker runs deliveries from queue hooks — start one: work --queue=hooks" in added.stderr
