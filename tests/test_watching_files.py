"""Alert rules and dashboard: every expression finds what a pool really tells."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from queuety import Queuety
from queuety.process.metrics import FAMILIES
from tests import ROOT
from tests.daemon import daemon, until
from tests.scrapes import PROMTOOL, address

RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "queuety.json").read_text())
PROMETHEUS = shutil.which("prometheus")

_NAME = re.compile(r"\bqueuety_[a-z_]+")


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def told_names() -> set[str]:
    names = set()
    for one in FAMILIES:
        parts = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        names |= {one.name + part for part in parts}
    return names


def test_rules_and_dashboard_name_only_what_is_told():
    text = (RULES / "queuety.rules.yml").read_text() + "".join(expressions())

    assert set(_NAME.findall(text)) <= told_names()


def test_the_dashboard_shows_everything_that_is_told():
    shown = set(_NAME.findall("".join(expressions())))

    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == {one.name for one in FAMILIES}


@pytest.mark.skipif(not PROMTOOL, reason="no promtool here")
def test_the_alert_rules_pass_their_tests():
    assert PROMTOOL
    for arguments in (["check", "rules", "queuety.rules.yml"], ["test", "rules", "queuety.test.yml"]):
        said = subprocess.run([PROMTOOL, *arguments], cwd=RULES, capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stdout + said.stderr


def test_each_alert_has_a_test_that_raises_it():
    alerts = set(re.findall(r"- alert: (\w+)", (RULES / "queuety.rules.yml").read_text()))
    tests = (RULES / "queuety.test.yml").read_text()

    assert alerts == set(re.findall(r"alertname: (\w+)\n", tests))
    assert alerts == set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", tests.split("\n  - name:")[1]))


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """A real Prometheus that scrapes a pool each second, with our rules; yields its address."""
    assert PROMETHEUS
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "queuety.rules.yml")],
        "scrape_configs": [{"job_name": "queuety", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={at}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield at
    finally:
        process.terminate()
        process.wait(20)


def query(at: str, expression: str) -> list[dict[str, Any]]:
    connection = HTTPConnection(at, timeout=10)
    try:
        connection.request("GET", "/api/v1/query?" + urlencode({"query": expression}))
        response = connection.getresponse()
        if response.status == 503:
            return []  # up, and not ready yet
        answer = json.loads(response.read())
    except OSError:
        return []  # not up yet
    finally:
        connection.close()
    assert answer["status"] == "success", (expression, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


@pytest.mark.skipif(not PROMETHEUS, reason="no prometheus here")
def test_every_expression_of_the_dashboard_finds_something_in_a_real_scrape(database: str, tmp_path: Path):
    app = Queuety(database)
    with daemon(database, "--http=127.0.0.1:0", log=tmp_path / "log") as pool:
        target = address(pool)
        with prometheus(tmp_path, target) as at:
            until(lambda: query(at, "queuety_queue_jobs"), 60, "depths")
            app.enqueue("ok")
            until(lambda: query(at, 'queuety_job_settlements_total{settlement="completed"} > 0'), 30, "a job")
            app.enqueue("ok")  # a rate needs a second one
            app.enqueue("permanent", max_attempts=1)
            until(lambda: query(at, "rate(queuety_job_run_seconds_count[30s]) > 0"), 30, "a rate")

            for expression in expressions():
                asked = expression.replace("$__rate_interval", "30s")
                asked = asked.replace("$queue", ".*").replace("$handler", ".*")
                assert query(at, asked), expression
            assert query(at, 'up{job="queuety"} == 1')
            # What the scrape brought under these names, and no other, is what the page lists.
            scraped = {one["metric"]["__name__"] for one in query(at, '{__name__=~"queuety_.*"}')}
            assert scraped == told_names()
