"""Schedules declared in code: everything is checked where it stands, and nothing touches a database."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuety import Handler, PayloadError, Queuety, UsageError
from queuety.model import Missed, NewSchedule, Overlap, Priority
from queuety.schedule import MAX_KEY
from tests.apps import scheduled
from tests.daemon import daemon
from tests.test_cli import AWAY, Run, one_line, queuety
from tests.test_cli import run as run

SPRING, SUMMER = datetime(2030, 3, 1, tzinfo=UTC), datetime(2030, 6, 1, tzinfo=UTC)


@pytest.fixture
def app() -> Queuety:
    app = Queuety(AWAY)

    @app.job
    def add(a: int, b: int = 0) -> int:
        return a + b

    return app


def only(app: Queuety) -> NewSchedule:
    [one] = app.declared
    return one


# ── the ways to declare ───────────────────────────────────────────────────────────────────────────────────────


def test_a_function_under_a_schedule_becomes_a_handler_with_its_settings():
    declared = {one.key: one for one in scheduled.app.declared}

    assert isinstance(scheduled.nightly, Handler)
    assert scheduled.nightly.options.timeout_s == 60
    nightly = declared["nightly"]
    assert (nightly.cron, nightly.every_s, nightly.timezone) == ("0 3 * * *", None, "Asia/Seoul")
    assert (nightly.job.handler, nightly.job.payload, nightly.job.queue) == ("nightly", "{}", "reports")
    assert scheduled.nightly("today") == "today"


def test_one_handler_may_have_several_schedules_each_with_its_own_jobs():
    declared = {one.key: one for one in scheduled.app.declared}

    often, early = declared["add-often"], declared["add-early"]
    assert (often.every_s, often.job.payload, often.job.tags) == (
        1800.0,
        '{"a":1,"b":2}',
        ("sums", "schedule:add-often"),
    )
    assert (early.cron, early.job.priority, early.job.max_attempts) == ("0 0 4 * * 1-5", Priority.HIGH, 7)
    assert often.job.priority == Priority.NORMAL


def test_a_schedule_may_stand_before_its_handler():
    declared = {one.key: one for one in scheduled.app.declared}

    assert (declared["later"].job.handler, declared["later"].job.payload) == ("later", '{"to":"kim"}')


def test_a_schedule_says_all_that_was_asked_for(app: Queuety):
    app.schedule(
        "add", name="sums", every=timedelta(minutes=5), payload={"a": 1}, start=SPRING, end=SUMMER, jitter="30s",
        overlap="buffer", missed="all", missed_limit=12, queue="low", unique=True, on_duplicate="skip",
        concurrency_limit=2,
    )  # fmt: skip

    one = only(app)

    assert (one.key, one.every_s, one.starts_at, one.ends_at) == ("sums", 300.0, SPRING, SUMMER)
    assert (one.jitter_s, one.overlap, one.missed, one.missed_limit) == (30.0, Overlap.BUFFER, Missed.ALL, 12)
    assert (one.job.queue, one.job.unique, one.job.on_duplicate) == ("low", True, "skip")
    assert one.job.limits == '{"group": "add", "concurrency": 2}'


def test_what_is_not_said_is_as_documented(app: Queuety):
    app.schedule("add", cron="0 3 * * *", payload={"a": 1})

    one = only(app)

    assert (one.key, one.timezone, one.jitter_s) == ("add", "UTC", 0.0)
    assert (one.overlap, one.missed, one.missed_limit) == (Overlap.ALLOW, Missed.ONCE, 100)
    assert one.job.tags == ("schedule:add",)


def test_a_declaration_keeps_what_it_was_given(app: Queuety):
    payload, tags = {"a": 1}, ["first"]
    app.schedule("add", every=60, payload=payload, tags=iter(tags))

    payload["a"] = 2

    assert [one.job.payload for one in app.declared] == ['{"a":1}']
    assert [one.job.tags for one in app.declared] == [("first", "schedule:add")]


def test_a_declaration_may_have_ended(app: Queuety):
    """Code outlives its schedules: a pool must start the day after the last tick, too."""
    app.schedule("add", every=60, payload={"a": 1}, end=datetime(2020, 1, 1, tzinfo=UTC))

    assert only(app).ends_at == datetime(2020, 1, 1, tzinfo=UTC)


def test_an_application_without_schedules_does_without_cron():
    script = "import sys; from queuety import Queuety; Queuety().declared; print('queuety.policy.cron' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 3 * * *", "every": "1h"}, "cron and every exclude each other"),
    ({"cron": 5}, "cron"),
    ({"every": 0}, "every=0 is not an interval"),
    ({"every": -5}, "every=-5 is not an interval"),
    ({"every": 1e-6}, "every=1e-06 is not an interval"),
    ({"every": timedelta(microseconds=1)}, "is not an interval"),
    ({"every": 10**12}, "every=1000000000000 is not an interval"),
    ({"every": float("nan")}, "every=nan is not an interval"),
    ({"every": float("inf")}, "every=inf is not an interval"),
    ({"every": "soon"}, "every='soon' is not an interval"),
    ({"every": True}, "every=True is not an interval"),
    ({"every": "1h", "jitter": -5}, "jitter=-5 is out of range"),
    ({"every": "1h", "jitter": float("nan")}, "jitter=nan is not a duration"),
    ({"every": "1h", "jitter": "2d"}, "jitter='2d' is out of range"),
    ({"every": "1h", "delay": -5}, "no option 'delay'"),
    ({"every": "1h", "at": SPRING}, "no option 'at'"),
    ({"every": "1h", "connection": object()}, "no option 'connection'"),
    ({"every": "1h", "timeout": 5}, "setting of the handler"),
    ({"every": "1h", "overlp": "skip"}, "did you mean overlap?"),
    ({"every": "1h", "xyz": 1}, "options are name, cron"),
    ({"every": "1h", "overlap": "queue"}, "overlap='queue' is unknown"),
    ({"every": "1h", "missed": "never"}, "missed='never' is unknown"),
    ({"every": "1h", "missed_limit": 5}, 'goes with missed="all" only'),
    ({"every": "1h", "missed": "all", "missed_limit": 0}, "missed_limit=0 is out of range"),
    ({"every": "1h", "missed": "all", "missed_limit": 1001}, "missed_limit=1001 is out of range"),
    ({"every": "1h", "start": datetime(2030, 1, 1)}, "start="),
    ({"every": "1h", "start": "tomorrow"}, "start='tomorrow' is not a date"),
    ({"every": "1h", "end": 5}, "end=5 is not a date"),
    ({"every": "1h", "start": SUMMER, "end": SPRING}, "not after its start"),
    ({"every": "1h", "start": SPRING, "end": SPRING}, "not after its start"),
    ({"cron": "0 0 1 1 *", "start": SPRING, "end": SUMMER}, "never ticks between"),
    ({"cron": "0 0 29 2 *", "start": datetime(2097, 1, 1, tzinfo=UTC), "end": datetime(2101, 1, 1, tzinfo=UTC)},
     "never ticks between"),
    ({"every": "1h", "queue": "a b"}, "the queue name 'a b' cannot be used"),
    ({"every": "1h", "priority": 9}, "there is no priority 9"),
    ({"every": "1h", "max_attempts": 0}, "max_attempts=0"),
    ({"every": "1h", "tags": "x"}, "no list of names"),
    ({"every": "1h", "unique_for": 5}, "the job has no key"),
    ({"every": "1h", "rate_limit": 5}, "is no rate"),
    ({"every": "1h", "payload": [1]}, "a payload is a mapping"),
    ({"every": "1h", "payload": {"b": 1}}, r"add\(\) is missing the argument a"),
    ({"every": "1h", "payload": {"a": 1, "c": 1}}, r"add\(\) has no argument 'c'"),
    ({"every": "1h", "payload": {"a": float("nan")}}, "payload.a"),
    ({"every": "1h", "payload": {"a": threading.Lock()}}, "payload.a"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_nonsense_is_refused_where_it_is_declared(app: Queuety, given: dict[str, Any], said: str):
    given = {"payload": {"a": 1}, **given}

    with pytest.raises(UsageError, match=said) as caught:
        app.schedule("add", name="sums", **{"every": None, **given})  # by name, also without a cadence

    assert (
        caught.value.message.startswith("schedule 'sums': ") or given.get("cron", given.get("every")) is None
    )
    assert app.declared == []


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 0 30 2 *", "day-of-month 30 never comes in month 2"),
        ("0 0 31 2 *", "day-of-month 31 never comes in month 2"),
        ("0 0 31 4,6,9,11 *", "day-of-month 31 never comes in month 4,6,9,11"),
        ("0 0 0 1 0", "day-of-month"),
        ("60 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("* * * * 8", "weekday"),
        ("@every 5m", "@every"),
        ("@reboot", "@reboot"),
        ("", "fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * * *", "8 fields"),
        ("０ ３ ＊ ＊ ＊", "minute"),  # noqa: RUF001 - full width
        ("," * 10_000, "cron"),
    ],
)
def test_a_cron_expression_that_cannot_be_meant_is_refused_by_name_of_the_field(
    app: Queuety, cron: str, said: str
):
    before = time.process_time()
    app.schedule("add", name="good", cron="0 3 * * *", payload={"a": 1})

    with pytest.raises(UsageError, match=said):
        app.schedule(cron, name="bad")
    with pytest.raises(UsageError, match=said):
        app.schedule("add", cron=cron, name="bad", payload={"a": 1})

    assert [one.key for one in app.declared] == ["good"]
    assert time.process_time() - before < 5  # far above what it takes; without a bound it would be hours


@pytest.mark.parametrize("zone", ["Europe/Budapesst", "asia/seoul", "KST", "UTC+3", "", " "])
def test_a_zone_that_is_none_is_refused(app: Queuety, zone: str):
    with pytest.raises(UsageError, match=r"schedule 'add': timezone .* is not the name of a time zone"):
        app.schedule("add", cron="0 3 * * *", payload={"a": 1}, timezone=zone)


def test_a_misfit_between_payload_and_signature_is_an_error_of_the_payload(app: Queuety):
    with pytest.raises(PayloadError, match=r"schedule 'add': .* missing the argument a"):
        app.schedule("add", every=60)


def test_a_payload_for_a_handler_that_comes_later_is_checked_at_the_first_use(app: Queuety):
    app.schedule("send", every=60, payload={"too": "kim"})

    @app.job
    def send(to: str) -> None: ...

    with pytest.raises(PayloadError, match=r"schedule 'send': .* missing the argument to"):
        _ = app.declared


def test_a_schedule_whose_handler_never_comes_is_refused_at_the_first_use(app: Queuety):
    app.schedule("ad", every=60, name="sums")

    with pytest.raises(UsageError, match=r"schedule 'sums': the application has no handler 'ad' .*mean add?"):
        _ = app.declared


def test_two_schedules_of_one_name_are_refused(app: Queuety):
    app.schedule("add", every=60, payload={"a": 1})

    with pytest.raises(UsageError, match=r"there are two schedules 'add' .*name="):
        app.schedule("add", cron="@daily", payload={"a": 1})


@pytest.mark.parametrize("key", ["a b", "", "x" * (MAX_KEY + 1), "-x", 5])
def test_a_key_that_could_not_be_a_tag_is_refused(app: Queuety, key: Any):
    with pytest.raises(UsageError, match="schedule name"):
        app.schedule("add", every=60, payload={"a": 1}, name=key)


def test_the_longest_key_makes_a_tag(app: Queuety):
    app.schedule("add", every=60, payload={"a": 1}, name="x" * MAX_KEY)

    assert only(app).job.tags == (f"schedule:{'x' * MAX_KEY}",)


def test_a_name_alone_is_no_cadence(app: Queuety):
    with pytest.raises(UsageError, match="by its name give cron= or every= too"):
        app.schedule("add")


def test_a_decorator_without_a_cadence_is_refused(app: Queuety):
    with pytest.raises(UsageError, match="schedule 'tidy': it has neither a cron expression nor an interval"):

        @app.schedule(queue="low")
        def tidy() -> None: ...


def test_a_decorator_without_brackets_says_what_it_lacks(app: Queuety):
    with pytest.raises(UsageError, match="over 'tidy' says not when"):

        @app.schedule  # type: ignore[call-overload, untyped-decorator, unused-ignore]
        def tidy() -> None: ...


def test_a_schedule_by_name_decorates_nothing(app: Queuety):
    not_a_decorator: Any = app.schedule("add", every=60, payload={"a": 1})

    with pytest.raises(UsageError, match="decorates nothing"):
        not_a_decorator(print)


def test_the_handler_of_another_application_is_refused(app: Queuety):
    with pytest.raises(UsageError, match="belongs to another application"):
        app.schedule(every=60)(scheduled.add)


# ── zones nobody names ────────────────────────────────────────────────────────────────────────────────────────


def test_the_setting_names_the_zone_of_schedules_that_name_none():
    app = Queuety(AWAY, timezone="Europe/Berlin")

    @app.schedule("0 3 * * *")
    @app.schedule("0 3 * * *", name="far", timezone="Asia/Seoul")
    def tidy() -> None: ...

    assert {one.key: one.timezone for one in app.declared} == {"tidy": "Europe/Berlin", "far": "Asia/Seoul"}
    assert app.zoneless == []


def test_without_the_setting_it_is_utc_and_known_as_not_named(app: Queuety):
    app.schedule("add", cron="0 3 * * *", payload={"a": 1})
    app.schedule("add", every=60, payload={"a": 1}, name="often")
    app.schedule("add", cron="0 3 * * *", payload={"a": 1}, name="far", timezone="Asia/Seoul")

    assert app.zoneless == ["add"]


@pytest.mark.parametrize("zone", ["Europe/Budapesst", "asia/seoul", "KST", ""])
@pytest.mark.parametrize("target", ["tests.apps.basic:app", "tests.apps.scheduled:app"])
def test_a_pool_refuses_to_start_with_a_default_zone_that_is_none(run: Run, zone: str, target: str):
    done = run("work", code=2, QUEUETY_TIMEZONE=zone, QUEUETY_APP=target)

    assert f"timezone = {zone!r} (environment QUEUETY_TIMEZONE)" in one_line(done)


def test_a_pool_refuses_to_start_with_a_schedule_that_lacks_its_handler():
    done = queuety("work", url=AWAY, QUEUETY_APP="tests.apps.unscheduled:app")

    assert done.returncode == 2
    assert "schedule 'reprot': the application has no handler 'reprot' — did you mean report?" in one_line(
        done
    )


def test_a_pool_warns_once_of_cron_schedules_whose_zone_nobody_names(database: str, tmp_path: Any):
    log = tmp_path / "log"
    with daemon(database, "--workers=2", app="tests.apps.scheduled:app", log=log) as pool:
        pool.ready(2)
        pool.stop()

    lines = [line for line in log.read_text().splitlines() if "time zone" in line]
    assert len(lines) == 1
    assert "'add-early', 'later'" in lines[0]
    assert "UTC" in lines[0]
