"""Schedules as a person manages them, through the real command, and as a program does, through `app.schedules`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from queuety import PayloadError, Queuety, ScheduleExists, ScheduleNotFound, UsageError, WrongState
from queuety.cli.main import main
from queuety.plain import SCHEDULE_KEYS, TICK_KEYS
from queuety.store import workers
from queuety.store.connect import Connection
from tests.daemon import daemon, until
from tests.test_cli import APP, AWAY, Run, one_line, queuety
from tests.test_cli import run as run
from tests.test_schedule_declarations import SPRING, SUMMER

NIGHTLY = ("nightly", "report", "--cron=0 3 * * *", "--timezone=Asia/Seoul", "--anyway")
SCHEDULED = "tests.apps.scheduled:app"


@pytest.fixture
def app(database: str) -> Any:
    app = Queuety(database)

    @app.job(queue="reports", max_attempts=5)
    def report(days: int = 1) -> int:
        return days

    yield app
    app.close()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment whose database is away: a command that asks it ends with 3."""
    monkeypatch.setenv("QUEUETY_DATABASE_URL", AWAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # main() sets up logging


def stored(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.schedules").fetchone()
    assert row is not None
    return int(row[0])


# ── add, list, remove ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_is_added_listed_and_removed(run: Run):
    said = run("schedule", "add", *NIGHTLY).stdout
    assert said.startswith("schedule nightly added; next tick ")
    assert "03:00:00+09:00" in said
    assert "T18:00:00Z" in said

    table = run("schedule", "list").stdout.splitlines()
    assert table[0].split() == ["key", "handler", "cadence", "zone", "state", "next", "last", "note"]
    assert table[1].split()[:9] == ["nightly", "report", "0", "3", "*", "*", "*", "Asia/Seoul", "active"]

    assert run("schedule", "remove", "nightly").stdout == "schedule nightly removed\n"
    assert json.loads(run("schedule", "list", "--json").stdout) == []


def test_the_handler_is_the_key_if_none_is_named(run: Run):
    run("schedule", "add", "ping", "--every=30 seconds", "--anyway")

    [one] = json.loads(run("schedule", "list", "--json").stdout)

    assert (one["key"], one["handler"], one["every_s"], one["cron"]) == ("ping", "ping", 30.0, None)


def test_all_that_is_given_is_kept_and_shown(run: Run):
    made = run(
        "schedule", "add", *NIGHTLY, '--payload={"days": 2}', "--start=2030-03-01T00:00:00Z",
        "--end=2030-06-01T09:00:00+09:00", "--jitter=30s", "--overlap=buffer", "--missed=all", "--missed-limit=7",
        "--queue=low", "--priority=high", "--max-attempts=9", "--unique", "--on-duplicate=skip", "--tag=a", "--tag=b",
        "--concurrency-limit=2", "--rate-limit=5/1m", "--json",
    )  # fmt: skip

    one = json.loads(made.stdout)

    assert list(one) == list(SCHEDULE_KEYS)
    assert one["payload"] == {"days": 2}
    assert (one["starts_at"], one["ends_at"]) == ("2030-03-01T00:00:00Z", "2030-06-01T00:00:00Z")
    assert one["next_at"] == "2030-03-01T18:00:00Z"
    assert (one["jitter_s"], one["overlap"], one["missed"], one["missed_limit"]) == (30.0, "buffer", "all", 7)
    assert one["job"] == {
        "queue": "low",
        "priority": "high",
        "max_attempts": 9,
        "tags": ["a", "b", "schedule:nightly"],
        "unique": True,
        "on_duplicate": "skip",
        "limits": {
            "group": "report", "concurrency": 2, "rate_key": "report", "rate_count": 5, "rate_s": 60.0
        },
    }  # fmt: skip
    assert json.loads(run("schedule", "list", "--json").stdout) == [one]


def test_a_list_can_be_cut_to_a_handler_and_a_number(run: Run):
    for key, handler in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "y")):
        run("schedule", "add", key, handler, "--every=1h", "--anyway")

    found = json.loads(run("schedule", "list", "--handler=y", "--limit=2", "--json").stdout)

    assert [one["key"] for one in found] == ["b", "c"]


def test_a_taken_key_is_refused_and_replaced_if_asked(run: Run):
    run("schedule", "add", *NIGHTLY)
    assert "there is a schedule 'nightly' already" in one_line(run("schedule", "add", *NIGHTLY, code=6))

    run("schedule", "add", *NIGHTLY, "--replace", "--missed=skip")

    [one] = json.loads(run("schedule", "list", "--json").stdout)
    assert one["missed"] == "skip"


def test_a_pause_outlives_a_replacement(run: Run):
    run("schedule", "add", *NIGHTLY)
    run("schedule", "pause", "nightly")

    said = run("schedule", "add", *NIGHTLY, "--replace").stdout

    assert said == "schedule nightly is set; it is paused\n"


WRONG = [
    ((), "neither a cron expression nor an interval"),
    (("--cron=0 3 * * *", "--every=1h"), "exclude each other"),
    (("--cron=0 0 30 2 *",), "day-of-month 30 never comes in month 2"),
    (("--cron=60 * * * *",), "minute"),
    (("--cron=* * * *",), "4 fields"),
    (("--cron=@reboot",), "@reboot"),
    (("--cron=0 3 * * *", "--timezone=asia/seoul"), "did you mean Asia/Seoul?"),
    (("--cron=0 3 * * *", "--timezone="), "timezone ''"),
    (("--every=0",), "every='0' is not an interval"),
    (("--every=-5",), "every='-5' is not an interval"),
    (("--every=1e12",), "is not an interval"),
    (("--every=1h", "--jitter=-1"), "--jitter"),
    (("--every=1h", "--delay=5"), "No such option"),
    (("--every=1h", "--overlap=queue"), "overlap='queue' is unknown"),
    (("--every=1h", "--missed=never"), "missed='never' is unknown"),
    (("--every=1h", "--missed-limit=5"), "goes with missed"),
    (("--every=1h", "--missed=all", "--missed-limit=0"), "--missed-limit"),
    (("--every=1h", "--start=2030-01-01"), "--start"),
    (("--every=1h", "--start=2030-02-01T00:00:00Z", "--end=2030-01-01T00:00:00Z"), "not after its start"),
    (("--every=1h", "--payload={"), "payload"),
    (("--every=1h", "--payload=[1]"), "payload"),
    (("--every=1h", "--unique-for=5s"), "the job has no key"),
    (("--every=1h", "--queue=a b"), "cannot be used"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_nonsense_ends_with_2_before_the_database_is_asked(
    nowhere: None, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
):
    assert main(["schedule", "add", "nightly", "report", "--anyway", *options]) == 2

    assert said in capsys.readouterr().err


def test_a_schedule_whose_end_is_past_is_refused(run: Run, conn: Connection):
    done = run("schedule", "add", "a", "--every=1h", "--end=2020-01-01T00:00:00Z", "--anyway", code=2)

    assert "never ticks" in one_line(done)
    assert stored(conn) == 0


@pytest.mark.parametrize("zone", ["Europe/Budapesst", "asia/seoul", "KST", ""])
def test_a_default_zone_that_is_none_is_refused_by_name(run: Run, conn: Connection, zone: str):
    done = run("schedule", "add", "a", "--cron=0 3 * * *", "--anyway", code=2, QUEUETY_TIMEZONE=zone)

    assert f"timezone = {zone!r} (environment QUEUETY_TIMEZONE)" in one_line(done)
    assert stored(conn) == 0


def test_the_setting_names_the_zone_and_without_any_it_is_said_that_it_is_utc(run: Run):
    named = run("schedule", "add", "a", "--cron=0 3 * * *", "--anyway", QUEUETY_TIMEZONE="Asia/Seoul")
    nameless = run("schedule", "add", "b", "--cron=0 3 * * *", "--anyway")
    interval = run("schedule", "add", "c", "--every=1h", "--anyway")

    assert "+09:00" in named.stdout
    assert named.stderr == ""
    assert "read in UTC" in one_line(nameless)
    assert interval.stderr == ""


# ── handlers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_nobody_has_is_refused_with_the_way_out(run: Run, conn: Connection):
    said = one_line(run("schedule", "add", "nightly", "report", "--every=1h", code=2))

    assert "no living worker has a handler 'report'" in said
    assert "--anyway" in said
    assert stored(conn) == 0


def test_a_handler_of_a_living_worker_will_do(run: Run, conn: Connection):
    worker = workers.register(conn, "worker", "w", ["default"], ["report"], 1)
    run("schedule", "add", "a", "report", "--every=1h")
    assert "did you mean report?" in one_line(run("schedule", "add", "b", "reprot", "--every=1h", code=2))

    conn.execute("UPDATE queuety.workers SET seen_at = now() - interval '2 minutes' WHERE id = %s", [worker])

    run("schedule", "add", "c", "report", "--every=1h", code=2)


def test_with_an_application_its_handlers_will_do_and_the_payload_is_checked(run: Run):
    run("schedule", "add", "sums", "add", "--every=1h", '--payload={"a": 1, "b": 2}', QUEUETY_APP=APP)

    wrong = run("schedule", "add", "more", "add", "--every=1h", '--payload={"a": 1}', code=2, QUEUETY_APP=APP)
    assert "schedule 'more': add() is missing the argument b" in one_line(wrong)
    assert "nor has this application" in one_line(
        run("schedule", "add", "more", "ad", "--every=1h", code=2, QUEUETY_APP=APP)
    )


def test_a_handlers_own_settings_are_those_of_its_jobs(app: Queuety):
    made = app.schedules.add("report", every="1h", queue="low")

    assert (made.key, made.job["queue"], made.job["max_attempts"]) == ("report", "low", 5)


# ── pause, resume, run, history ───────────────────────────────────────────────────────────────────────────────


def test_several_keys_are_treated_one_by_one_and_partly_done_is_7(run: Run):
    run("schedule", "add", *NIGHTLY)

    paused = run("schedule", "pause", "nightly", "nigthly", "--reason=provider is down", code=7)

    assert paused.stdout == "schedule nightly is paused\n"
    assert "there is no schedule 'nigthly' — did you mean 'nightly'?" in one_line(paused)
    assert "provider is down" in run("schedule", "list").stdout
    assert run("schedule", "resume", "nightly").stdout == "schedule nightly goes on\n"
    assert run("schedule", "resume", "nightly").stdout == "schedule nightly was not paused\n"
    shown = json.loads(run("schedule", "remove", "nightly", "x", "--json", code=7).stdout)
    assert [(one["key"], one["done"]) for one in shown] == [("nightly", "removed"), ("x", None)]


@pytest.mark.parametrize("verb", ["remove", "pause", "resume", "run", "preview", "history"])
def test_an_unknown_key_ends_with_5(run: Run, verb: str):
    assert "there is no schedule 'nightly'" in one_line(run("schedule", verb, "nightly", code=5))


@pytest.mark.parametrize("verb", ["remove", "pause", "resume"])
def test_no_key_ends_with_2(run: Run, verb: str):
    assert "no schedule is named" in one_line(run("schedule", verb, code=2))


def test_run_writes_a_job_at_once_as_the_schedule_says(run: Run, app: Queuety):
    run("schedule", "add", *NIGHTLY, '--payload={"days": 3}', "--queue=low", "--overlap=skip")

    job = app.find(int(run("schedule", "run", "nightly").stdout))

    assert (job.handler, job.payload, job.queue, job.tags) == (
        "report",
        {"days": 3},
        "low",
        ("schedule:nightly",),
    )
    assert "has not ended" in one_line(run("schedule", "run", "nightly", code=6))
    [tick] = json.loads(run("schedule", "history", "nightly", "--json").stdout)
    assert list(tick) == list(TICK_KEYS)
    assert (tick["schedule"], tick["kind"], tick["job_id"], tick["reason"]) == (
        "nightly",
        "run",
        job.id,
        "by hand",
    )
    assert "by hand" in run("schedule", "history", "nightly", "--kind=run").stdout
    assert json.loads(run("schedule", "history", "nightly", "--kind=skip", "--json").stdout) == []
    assert "kind='walk' is unknown" in one_line(run("schedule", "history", "nightly", "--kind=walk", code=2))


def test_run_can_wait_for_the_result(run: Run, database: str, tmp_path: Path):
    with daemon(database, log=tmp_path / "log") as pool:
        pool.ready()
        run("schedule", "add", "sums", "add", "--cron=0 0 1 1 *", '--payload={"a": 1, "b": 2}')

        assert run("schedule", "run", "sums", "--wait").stdout == "3\n"


def test_status_tells_how_many_schedules_are_in_which_state(run: Run, app: Queuety, conn: Connection):
    assert "schedules" not in run("status").stdout
    for key in ("a", "b", "over", "paused", "broken", "retired"):
        app.schedules.add("report", name=key, every="1h")
    app.schedules.pause("paused")
    conn.execute("UPDATE queuety.schedules SET next_at = NULL WHERE key = 'over'")
    conn.execute("UPDATE queuety.schedules SET broken = 'why' WHERE key = 'broken'")
    conn.execute("UPDATE queuety.schedules SET retired_at = now() WHERE key = 'retired'")

    assert "2 active, 1 broken, 1 over, 1 paused, 1 retired" in run("status").stdout
    shown = json.loads(run("status", "--json").stdout)["schedules"]
    assert shown == {"active": 2, "broken": 1, "over": 1, "paused": 1, "retired": 1}
    assert {one.key: one.state for one in app.schedules.list() if one.key not in "ab"} == {
        state: state for state in ("over", "paused", "broken", "retired")
    }


# ── preview ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_preview_of_an_expression_needs_no_database_and_tells_the_gap():
    done = queuety(
        "schedule", "preview", "--cron=30 2 * * *", "--timezone=America/New_York", "--from=2026-03-07T12:00:00Z",
        "--count=3", url=AWAY,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["America/New_York", "UTC", "note"]
    assert lines[1].startswith("2026-03-08 03:00:00-04:00  2026-03-08 07:00:00Z  right after a gap: ")
    assert lines[2].split() == ["2026-03-09", "02:30:00-04:00", "2026-03-09", "06:30:00Z"]
    assert len(lines) == 4


def test_a_preview_tells_the_hour_that_comes_twice():
    done = queuety(
        "schedule", "preview", "--cron=*/30 1 * * *", "--timezone=Europe/Lisbon", "--from=2026-10-25T00:00:00Z",
        "--count=4", "--json", url=AWAY,
    )  # fmt: skip

    shown = json.loads(done.stdout)

    assert list(shown) == ["key", "timezone", "ticks", "skips"]
    assert [(tick["local"], tick["at"], tick["note"]) for tick in shown["ticks"]] == [
        ("2026-10-25T01:30:00+01:00", "2026-10-25T00:30:00Z", "in an hour that will be repeated"),
        ("2026-10-25T01:00:00+00:00", "2026-10-25T01:00:00Z", "in a repeated hour, the second time"),
        ("2026-10-25T01:30:00+00:00", "2026-10-25T01:30:00Z", "in a repeated hour, the second time"),
        ("2026-10-26T01:00:00+00:00", "2026-10-26T01:00:00Z", None),
    ]


def test_a_preview_of_a_schedule_shows_its_own_zone_jitter_and_last_skips(run: Run):
    run("schedule", "add", *NIGHTLY, "--jitter=1h", "--start=2020-01-01T00:00:00Z")
    run("schedule", "pause", "nightly", "--reason=holidays")

    assert "schedule nightly is paused: holidays" in run("schedule", "preview", "nightly").stdout
    text = run("schedule", "preview", "nightly", "--from=2030-01-01T00:00:00Z", "--count=2").stdout
    assert "Asia/Seoul" in text
    assert "2030-01-02 03:00:00+09:00  2030-01-01 18:00:00Z" in text

    shown = json.loads(run("schedule", "preview", "nightly", "--json", "--from=2030-01-01T00:00:00Z").stdout)
    for tick in shown["ticks"]:
        at, due = (datetime.fromisoformat(tick[name]) for name in ("at", "due"))
        assert timedelta(0) <= due - at <= timedelta(hours=1)
    assert len({tick["due"][14:19] for tick in shown["ticks"]}) > 1


def test_a_preview_tells_why_ticks_were_skipped(run: Run, conn: Connection):
    run("schedule", "add", "often", "x", "--every=1s", "--anyway")
    run("schedule", "pause", "often", "--reason=holidays")
    conn.execute(
        "UPDATE queuety.schedules SET next_at = now() - interval '3 s', paused_at = now() - interval '3 s'"
    )
    run("schedule", "resume", "often")

    text = run("schedule", "preview", "often").stdout

    assert "last skips:" in text
    assert "paused: holidays" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either a schedule's key, or --cron or --every"),
        (("nightly", "--cron=0 3 * * *"), "give either"),
        (("--cron=0 3 * * *", "--every=1h"), "exclude each other"),
        (("--cron=0 0 31 2 *",), "never comes"),
        (("--timezone=Asia/Seoul",), "neither a cron expression nor an interval"),
        (("--every=1h", "--count=0"), "--count"),
        (("--every=1h", "--from=tomorrow"), "--from"),
    ],
)
def test_a_preview_of_nonsense_ends_with_2(
    nowhere: None, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
):
    assert main(["schedule", "preview", *arguments]) == 2

    assert said in capsys.readouterr().err


# ── declared in code ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_pool_writes_what_its_code_declares_and_a_removed_one_comes_back(
    run: Run, database: str, app: Queuety, tmp_path: Path
):
    app.schedules.add("report", name="by-hand", every="1d")
    with daemon(database, app=SCHEDULED, log=tmp_path / "first") as pool:
        pool.ready()
    assert {one.key: one.declared_by for one in app.schedules.list()} == {
        "add-early": SCHEDULED,
        "add-often": SCHEDULED,
        "by-hand": None,
        "later": SCHEDULED,
        "nightly": SCHEDULED,
    }

    said = run("schedule", "remove", "nightly").stdout
    assert (
        said
        == f"schedule nightly removed, but {SCHEDULED} declares it in code: its next start brings it back\n"
    )
    with daemon(database, app=SCHEDULED, log=tmp_path / "second") as pool:
        pool.ready()

    assert app.schedules.find("nightly").declared_by == SCHEDULED
    for name in ("first", "second"):
        assert [
            line
            for line in (tmp_path / name).read_text().splitlines()
            if SCHEDULED in line and "added" in line
        ]


def test_what_code_declares_no_more_is_retired_and_what_it_declares_again_comes_back(database: str):
    def declaring(*keys: str) -> Queuety:
        app = Queuety(database, app="shop:app")

        @app.job
        def report() -> None: ...

        for key in keys:
            app.schedule("report", every="1h", name=key)
        return app

    assert declaring("a", "b").schedules.sync().added == ["a", "b"]

    done = declaring("b", "c").schedules.sync()

    assert (done.added, done.retired, done.unchanged) == (["c"], ["a"], ["b"])
    last = declaring("a")
    assert last.schedules.find("a").state == "retired"
    with pytest.raises(WrongState, match="retired"):
        last.schedules.run("a")
    last.schedules.sync()
    assert {one.key: one.state for one in last.schedules.list()} == {
        "a": "active",
        "b": "retired",
        "c": "retired",
    }


def test_a_flush_leaves_the_schedules_alone(run: Run, app: Queuety):
    run("flush", QUEUETY_APP=SCHEDULED)

    assert app.schedules.list() == []


def test_nobody_syncs_without_saying_who_declares(app: Queuety):
    app.schedule("report", every="1h")

    with pytest.raises(UsageError, match="which application"):
        app.schedules.sync()

    assert app.schedules.sync("shop:app").added == ["report"]


def test_a_schedule_made_while_everything_runs_is_run_by_the_pool(
    run: Run, database: str, app: Queuety, tmp_path: Path
):
    with daemon(database, log=tmp_path / "log") as pool:
        pool.ready()
        run("schedule", "add", "sums", "add", "--every=1s", '--payload={"a": 1, "b": 2}')

        job = until(lambda: app.jobs(tag="schedule:sums", state="completed"), what="a job of the schedule")[0]

    assert job.result == 3


# ── in Python ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_python_manages_schedules_too(app: Queuety):
    made = app.schedules.add(
        "report", name="sums", cron="0 3 * * *", timezone="Asia/Seoul", payload={"days": 2}
    )

    assert (made.key, made.payload, made.state) == ("sums", {"days": 2}, "active")
    with pytest.raises(ScheduleExists):
        app.schedules.add("report", name="sums", every=60)
    assert app.schedules.add("report", name="sums", every=60, replace=True).every_s == 60
    assert app.schedules.pause("sums", reason="why not").pause_reason == "why not"
    assert app.schedules.find("sums").state == "paused"
    assert app.schedules.resume("sums")
    assert not app.schedules.resume("sums")
    job_id = app.schedules.run("sums")
    assert [tick.job_id for tick in app.schedules.history("sums", kind="run")] == [job_id]
    assert [one.key for one in app.schedules.list(handler="report")] == ["sums"]
    assert app.schedules.list(after="sums") == []
    assert app.schedules.remove("sums").key == "sums"
    with pytest.raises(ScheduleNotFound):
        app.schedules.find("sums")


def test_python_is_refused_what_the_command_is_refused(app: Queuety):
    with pytest.raises(PayloadError, match="has no argument 'hours'"):
        app.schedules.add("report", every=60, payload={"hours": 1})
    with pytest.raises(UsageError, match="nor has this application"):
        app.schedules.add("reports", every=60)
    with pytest.raises(UsageError, match=r"no option 'evry'.*every"):
        app.schedules.add("report", evry=60)
    assert app.schedules.add("reports", every=60, anyway=True).handler == "reports"


def test_a_preview_in_python(app: Queuety):
    ticks = app.schedules.preview(cron="0 9 29 2 *", after=datetime(2096, 3, 1, tzinfo=UTC), count=1)
    bounded = app.schedules.preview(every="30d", start=SPRING, end=SUMMER, count=10, after=SPRING)

    assert [tick.at for tick in ticks] == [datetime(2104, 2, 29, 9, tzinfo=UTC)]
    assert [tick.at for tick in bounded] == [SPRING + timedelta(days=30 * number) for number in (1, 2, 3)]
    with pytest.raises(UsageError, match="exclude each other"):
        app.schedules.preview("nightly", cron="0 3 * * *")
    with pytest.raises(UsageError, match="no option 'zone'"):
        app.schedules.preview(cron="0 3 * * *", zone="Asia/Seoul")
    with pytest.raises(UsageError, match="has no offset"):
        app.schedules.preview(cron="0 3 * * *", after=datetime(2030, 1, 1))
    with pytest.raises(UsageError, match="count=0"):
        app.schedules.preview(cron="0 3 * * *", count=0)
