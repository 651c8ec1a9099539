"""The command line, as a person or a script meets it: the real `queuety` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from queuety.cli.main import COMMANDS, main
from queuety.plain import JOB_KEYS
from tests import ROOT

QUEUETY = str(Path(sys.executable).parent / "queuety")
AWAY = "postgresql://nobody@127.0.0.1:9/nothing"  # the discard port: nobody listens
APP = "tests.apps.basic:app"


def environment(url: str | None, **more: str) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QUEUETY_", "PG")) and name != "DATABASE_URL"
    }
    if url is not None:
        clean["QUEUETY_DATABASE_URL"] = url
    return {**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


def queuety(
    *arguments: str, url: str | None, stdin: str | None = None, cwd: Path | str = "/", **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUEUETY, *arguments],
        env=environment(url, **env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        input=stdin if stdin is not None else "",
    )


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(database: str) -> Run:
    """Run a command on the test's database and expect it to end with `code`."""

    def call(*arguments: str, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        done = queuety(*arguments, url=database, **more)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return call


@pytest.fixture
def enqueued(run: Run) -> Callable[..., int]:
    def call(*arguments: str) -> int:
        return int(run("enqueue", *arguments).stdout)

    return call


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line on standard error."""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("queuety: ")
    return done.stderr


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command", [*COMMANDS, "db migrate", "db status", "db sql", "db psql", "config show"]
)
def test_every_command_has_a_help_with_an_example(command):
    from click.testing import CliRunner

    from queuety.cli.main import cli

    shown = CliRunner().invoke(cli, [*command.split(), "--help"])

    assert shown.exit_code == 0
    assert re.search(rf"queuety .*{command.split()[-1]}", shown.output.partition("\n")[2]), shown.output


def test_help_needs_neither_database_nor_the_database_code():
    text = "import sys; from queuety.cli.main import main; main(['--help']); main(['work', '--help']); "
    text += "print([name for name in ('psycopg', 'sqlalchemy', 'alembic') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout.endswith("[]\n")


def test_the_version_is_told():
    done = queuety("--version", url=None)

    assert re.fullmatch(r"queuety \d+\.\d+\.\d+\n", done.stdout)


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────

USAGE = [
    "nonsense",
    "--nonsense",
    "jobs --nonsense",
    "jobs --limit=0",
    "jobs --limit=1.5",
    "jobs --limit=1000000",
    "jobs --state=done",
    "jobs --queue=a,b",
    "jobs --after=0",
    "job",
    "job 0",
    "job -5",
    "job abc",
    "job 9223372036854775808",
    "job 1 2",
    "cancel",
    "cancel 1 x",
    "enqueue",
    "enqueue ok --payload=[1]",
    "enqueue ok --payload=",
    "enqueue ok --payload={",
    'enqueue ok --payload={"a":NaN}',
    'enqueue ok --payload={"a":1,"a":2}',
    'enqueue ok --payload={"a":"\\u0000"}',
    'enqueue ok --payload={"a":"\\ud800"}',
    "enqueue ok --payload=@/no/such/file",
    "enqueue ok --delay=-5",
    "enqueue ok --delay=NaN",
    "enqueue ok --delay=soon",
    "enqueue ok --delay=1e30",
    "enqueue ok --at=2030-01-01T00:00:00",
    "enqueue ok --at=tomorrow",
    "enqueue ok --at=2030-01-01T00:00:00Z --delay=5",
    "enqueue ok --priority=9",
    "enqueue ok --priority=max",
    "enqueue ok --max-attempts=0",
    "enqueue ok --max-attempts=1001",
    "enqueue ok --unique-key=",
    "enqueue ok --unique-key=k --unique-until=claim",
    "enqueue ok --unique-key=k --unique-for=0",
    "enqueue ok --unique-key=k --unique-for=60 --unique-until=end",
    "enqueue ok --unique-key=k --on-duplicate=ignore",
    "enqueue ok --on-duplicate=skip",
    "enqueue ok --unique-for=60",
    "enqueue ok --many=- --unique-key=k",
    "enqueue ok --many=/no/such/file",
    "enqueue ok --many=- --wait",
    "enqueue ok --many=- --payload={}",
    "retry",
    "retry 1 --buried",
    "retry 1 --queue=default",
    "retry --buried",
    "purge",
    "purge --older-than=yesterday --yes",
    "purge --state=pending --yes",
    "pause default --until=2030-01-01T00:00:00",
    "pause",
    "events",
    "events 1 --types=secret",
    "events 1 --after=1.0",
    "events 1 --types=public --after=one",
    "completion tcsh",
    "db nonsense",
    "--log-level=loud status",
    "--log-format=xml status",
    "--database-url=nonsense status",
    "--database-url=postgresql://[::1/d status",
    "work",
    "flush",
    "--app=nonsense work",
    f"--app={APP} work --workers=0",
    f"--app={APP} work --workers=-1",
    f"--app={APP} work --workers=1.5",
    f"--app={APP} work --workers=two",
    f"--app={APP} work --workers=1000000",
    f"--app={APP} work --workers=10^6",
    f"--app={APP} work --once --workers=4",
    f"--app={APP} work --once --max-jobs=4",
    f"--app={APP} work --max-jobs=-1",
    f"--app={APP} work --max-time=never",
    f"--app={APP} work --max-memory=lots",
    f"--app={APP} work --stop-timeout=-1",
    f"--app={APP} work --queue=",
    f"--app={APP} work --queue=a,,b",
    f"--app={APP} work --queue=a;b",
    f"--app={APP} work --min-workers=1",
    f"--app={APP} work --min-workers=3 --max-workers=2",
    *(
        f"--app={APP} work {size}={value}"
        for size in ("--min-workers=1 --max-workers", "--max-workers=8 --min-workers")
        for value in ("0", "-1", "1.5", "two", "1000000", "10^6")
    ),
    f"--app={APP} work --workers=2 --min-workers=1",
    f"--app={APP} work --workers=2 --max-workers=4",
    f"--app={APP} work --workers=2 --min-workers=1 --max-workers=4",
    f"--app={APP} work --once --max-workers=4",
    f"--app={APP} work --once --min-workers=1 --max-workers=1",
    f"--app={APP} work --target-wait=2s",
    f"--app={APP} work --max-workers=4 --target-wait=0",
    f"--app={APP} work --max-workers=4 --target-wait=soon",
    f"--app={APP} work --max-workers=4 --scale-interval=0",
    f"--app={APP} work --max-workers=4 --idle-grace=-1",
    f"--app={APP} flush --max-workers=4",
    f"--app={APP} work --stale-timeout=0",
    f"--app={APP} work --retry-backoff=random",
    f"--app={APP} flush --workers=0",
]


@pytest.mark.parametrize("arguments", USAGE)
def test_bad_input_is_refused_in_one_line_before_the_database_is_looked_for(arguments):
    done = queuety(*arguments.split(" "), url=AWAY)

    assert done.returncode == 2, done.stderr
    assert one_line(done)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--min-workers=2", "--min-workers=2 needs --max-workers"),
        ("--min-workers=3 --max-workers=2", "--min-workers=3 is more than --max-workers=2"),
        ("--workers=2 --max-workers=4", "--workers=2 and --max-workers=4 exclude each other"),
        (
            "--once --min-workers=1 --max-workers=4",
            "--once and --min-workers=1 --max-workers=4 exclude each other",
        ),
        ("--max-workers=1000000", "--max-workers='1000000' is out of range"),
        ("--target-wait=2s", "--target-wait needs --max-workers"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(options, said):
    assert said in one_line(queuety(f"--app={APP}", "work", *options.split(), url=AWAY))


def test_a_wrong_option_of_a_command_names_its_help():
    assert "queuety jobs --help" in one_line(queuety("jobs", "--nonsense", url=AWAY))


def test_a_global_option_behind_the_command_is_told_its_place():
    said = one_line(queuety("work", "--app=shop:app", url=AWAY))

    assert "queuety --app=… work" in said


def test_where_nothing_can_be_forked_work_says_so(monkeypatch, capsys):
    monkeypatch.delattr(os, "fork")

    assert main(["work"]) == 2
    assert "only the caller's side works" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_unless_debugging(monkeypatch, capsys, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a surprise with password=hunter2")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("queuety.app.Queuety.stats", broken)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("QUEUETY_DATABASE_URL", AWAY)

    assert main(["status"]) == 1
    quiet = capsys.readouterr().err
    assert main(["--log-level=debug", "status"]) == 1
    loud = capsys.readouterr().err

    assert quiet.count("\n") == 1
    assert "unexpected RuntimeError: a surprise" in quiet
    assert "Traceback" in loud
    assert "hunter2" not in quiet + loud


@pytest.mark.parametrize(
    "arguments",
    [
        'enqueue add --payload={"a":1}',
        'enqueue add --payload={"a":1,"b":2,"c":3}',
    ],
)
def test_a_payload_that_does_not_fit_the_handler_writes_nothing(run, conn, arguments):
    done = run("--app", APP, *arguments.split(" "), code=2)

    assert "add(" in one_line(done)
    assert conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone() == (0,)


def test_a_bad_line_of_many_writes_nothing(run, conn):
    lines = ['{"a": 1}'] * 20_000 + ["[1]"]

    done = run("enqueue", "ok", "--many", "-", code=2, stdin="\n".join(lines))

    assert "standard input, line 20001" in one_line(done)
    assert conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone() == (0,)


GOOD_NAMES = ["작업", "UPPER", "_", "a.b-c", "x" * 255]
BAD_NAMES = ["a b", "*", "o'hara", "%s", "a%", "x" * 256, "a\nb", "a\tb", "", "\U0001f600", "\udcff", "-x"]
BY_QUEUE = [
    ["jobs", "--queue={}"],
    ["enqueue", "ok", "--queue={}"],
    ["pause", "--", "{}"],
    ["resume", "--", "{}"],
    ["status", "--queue={}"],
    ["retry", "--buried", "--dry-run", "--queue={}"],
    ["purge", "--dry-run", "--queue={}"],
    ["--app", APP, "flush", "--queue={}"],
    ["--app", APP, "work", "--once", "--queue={}"],
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_good_queue_name_works_with_every_command(run, name):
    for words in BY_QUEUE:
        run(*(word.format(name) for word in words))

    [found] = json.loads(run("jobs", "--json").stdout)
    assert (found["queue"], found["state"]) == (name, "completed")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_queue_name_is_refused_by_every_command_in_the_same_words(name):
    said = set()
    for words in BY_QUEUE:
        done = queuety(*(word.format(name) for word in words), url=AWAY)
        assert done.returncode == 2
        said.add(one_line(done))

    assert len(said) == 1


def test_signs_of_patterns_are_no_patterns(run, enqueued):
    enqueued("ok", "--queue=_")
    enqueued("ok", "--queue=a")

    assert len(json.loads(run("jobs", "--queue=_", "--json").stdout)) == 1


# ── the database ──────────────────────────────────────────────────────────────────────────────────────────────

EVERY_ROAD = [
    "status",
    "jobs",
    "job 1",
    "recover",
    "enqueue ok",
    "cancel 1",
    "workers",
    "queues",
    "pause a",
    "purge --yes",
    "db migrate",
    f"--app={APP} work",
    f"--app={APP} work --once",
    f"--app={APP} flush",
]


@pytest.mark.parametrize("arguments", EVERY_ROAD)
def test_an_unreachable_database_is_one_line_and_exit_code_3(arguments):
    done = queuety(*arguments.split(), url=AWAY.replace("nobody@", "nobody:hunter2@"))

    assert done.returncode == 3, done.stderr
    assert "hunter2" not in one_line(done)


@pytest.mark.parametrize(
    "arguments", ["status", "db status", "db migrate", f"--app={APP} work", f"--app={APP} flush"]
)
@pytest.mark.parametrize("wrong", ["password", "name"])
def test_a_wrong_password_or_name_is_one_line_without_a_secret(login, arguments, wrong):
    url = login("cli_wrong", "hunter2")
    if wrong == "password":
        url = url.replace("hunter2", "hunter3")
    else:
        url = urlsplit(url)._replace(path="/no_such_database").geturl()

    done = queuety(*arguments.split(), url=url)

    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("queuety: ")
    assert "hunter" not in done.stderr + done.stdout


@pytest.mark.parametrize("arguments", [road for road in EVERY_ROAD if "migrate" not in road])
def test_a_missing_schema_is_one_line_and_exit_code_4(empty, arguments):
    done = queuety(*arguments.split(), url=empty)

    assert done.returncode == 4, done.stderr
    assert "queuety db migrate" in one_line(done)


def test_migrate_brings_the_schema_and_says_so(empty):
    assert queuety("db", "status", url=empty).returncode == 4

    first = queuety("db", "migrate", url=empty)
    second = queuety("db", "migrate", "--json", url=empty)

    assert "0001" in first.stdout
    assert json.loads(second.stdout)["applied"] == []
    shown = queuety("db", "status", "--json", url=empty)
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["problem"] is None


def test_missing_rights_are_told_before_anything_runs(login):
    done = queuety("--app", APP, "work", url=login("cli_poor"))

    assert done.returncode == 3
    assert "permission denied" in one_line(done) or "lacks" in done.stderr


def test_any_legal_password_works(login, run, conn):
    from psycopg import sql

    url = login("cli_odd", "p%40s:/?#[]@!%%(x)s")
    database = conn.info.dbname
    conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO cli_odd").format(sql.Identifier(database)))
    conn.execute("GRANT USAGE ON SCHEMA queuety TO cli_odd")
    conn.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuety TO cli_odd")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO cli_odd")

    for words in (
        ["db", "migrate"],
        ["status"],
        ["enqueue", "ok"],
        ["--app", APP, "flush"],
        ["config", "show"],
    ):
        done = queuety(*words, url=url)
        assert done.returncode == 0, done.stderr
        assert "(x)s" not in done.stdout + done.stderr


def test_without_any_url_all_commands_share_the_embedded_database():
    folder = tempfile.mkdtemp(prefix="queuety-cli-")  # one that the server's account may enter
    try:
        places = {"QUEUETY_DATA_DIR": folder}
        written = queuety("enqueue", "ok", url=None, **places)
        flushed = queuety("--app", APP, "flush", url=None, **places)
        asked = queuety(
            "db", "psql", "--", "-Atc", "SELECT count(*) FROM queuety.finished_jobs", url=None, **places
        )
        status = queuety("db", "status", "--json", url=None, **places)

        assert written.returncode == 0, written.stderr
        assert flushed.stdout == "1 job: 1 completed\n", flushed.stderr
        assert asked.stdout == "1\n", asked.stderr
        assert json.loads(status.stdout)["running"] is False
        assert queuety("db", "url", url=None, **places).stdout.startswith(
            "postgresql://queuety@/queuety?host="
        )
        assert queuety("db", "stop", url=None, **places).returncode == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_password_on_the_command_line_leaves_the_process_list(login, conn):
    url = login("cli_listed", "hunter2")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO cli_listed")
    conn.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuety TO cli_listed")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO cli_listed")
    pool = subprocess.Popen(
        [QUEUETY, "--app", APP, "--database-url", url, "work"], env=environment(None), cwd="/"
    )
    try:
        wait_until(lambda: children(pool.pid) >= 2)
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in [pool.pid, *child_ids(pool.pid)]]
    finally:
        pool.terminate()

    assert pool.wait(20) == 0
    assert all(line.startswith("queuety: ") for line in lines)
    assert "hunter2" not in "".join(lines)


def test_the_sql_is_written_without_a_database():
    done = queuety("db", "sql", url=None)

    assert "CREATE TABLE queuety.jobs" in done.stdout


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def settings(tmp_path: Path, *arguments: str, **env: str) -> dict[str, dict[str, str]]:
    done = queuety(*arguments, "config", "show", "--origin", "--json", url=None, cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_option_wins_over_environment_over_file_over_default(tmp_path):
    (tmp_path / "queuety.toml").write_text('log_level = "error"\nmax_attempts = 4\n')

    default = settings(tmp_path)["QUEUETY_RETRY_BACKOFF"]
    file = settings(tmp_path)["QUEUETY_LOG_LEVEL"]
    environ = settings(tmp_path, QUEUETY_LOG_LEVEL="warning")["QUEUETY_LOG_LEVEL"]
    option = settings(tmp_path, "--log-level=debug", QUEUETY_LOG_LEVEL="warning")["QUEUETY_LOG_LEVEL"]

    assert default == {"value": "exponential", "origin": "default"}
    assert file == {"value": "error", "origin": f"file {tmp_path}/queuety.toml"}
    assert environ == {"value": "warning", "origin": "environment QUEUETY_LOG_LEVEL"}
    assert option == {"value": "debug", "origin": "option --log-level"}


def test_a_setting_shown_is_without_its_secret(tmp_path):
    shown = settings(tmp_path, "--database-url=postgresql://kim:hunter2@host/db")

    assert "hunter2" not in json.dumps(shown)
    assert shown["QUEUETY_DATABASE_URL"]["value"] == "postgresql://kim:***@host/db"


def test_the_application_may_stand_in_pyproject(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f'[tool.queuety]\napp = "{APP}"\n')
    run("enqueue", "ok")

    assert "1 job: 1 completed" in run("flush", cwd=tmp_path).stdout


def test_an_unknown_key_of_the_file_is_refused_with_a_suggestion(tmp_path):
    (tmp_path / "queuety.toml").write_text("stale_timeouts = 5\n")

    done = queuety("status", url=AWAY, cwd=tmp_path)

    assert done.returncode == 2
    assert "stale_timeout?" in one_line(done)


def test_what_the_command_line_says_reaches_the_handlers(run, database, tmp_path):
    """A handler that enqueues through its application must write where the pool works, whatever its code says."""
    (tmp_path / "elsewhere_app.py").write_text(
        "from queuety import Queuety\n"
        f"app = Queuety({AWAY!r}, max_attempts=9)\n"
        "@app.job\n"
        "def second(): pass\n"
        "@app.job\n"
        "def first(): second.enqueue()\n"
    )
    run("enqueue", "first")

    done = run("--app=elsewhere_app:app", "flush", cwd=tmp_path)

    assert "2 jobs: 2 completed" in done.stdout
    assert [job["max_attempts"] for job in json.loads(run("jobs", "--json").stdout)] == [9, 3]


def test_the_applications_own_database_counts_where_no_other_is_named(run, database, tmp_path):
    (tmp_path / "own_app.py").write_text(
        f"from queuety import Queuety\napp = Queuety({database!r})\n@app.job\ndef ok(): pass\n"
    )
    run("enqueue", "ok")

    done = queuety("--app=own_app:app", "flush", url=None, cwd=tmp_path)
    listed = queuety("--app=own_app:app", "jobs", "--json", url=None, cwd=tmp_path)

    assert "1 job: 1 completed" in done.stdout, done.stderr
    assert len(json.loads(listed.stdout)) == 1


# ── the application ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["work", "flush", "enqueue ok"])
@pytest.mark.parametrize(
    "text",
    [
        "import no_such_module_at_all",
        "raise SystemExit(0)",
        "def oops(:",
        "app = 5",
        "import os; os._exit(0)",
    ],
)
def test_an_application_that_cannot_be_imported_is_one_line_and_exit_code_70(
    tmp_path, database, command, text
):
    if "_exit" in text and command == "enqueue ok":
        pytest.skip("it takes our process along, as it asks to")
    (tmp_path / "broken_app.py").write_text(text)

    done = queuety("--app=broken_app:app", *command.split(), url=database, cwd=tmp_path)

    assert done.returncode == 70, done.stderr
    assert one_line(done)


def test_what_a_module_prints_does_not_spoil_the_json(run, tmp_path):
    (tmp_path / "loud_app.py").write_text(
        "from queuety import Queuety\nprint('hello')\napp = Queuety()\n@app.job\ndef ok(): print('at work')\n"
    )
    written = run("--app=loud_app:app", "enqueue", "ok", "--json", cwd=tmp_path)

    done = run("--app=loud_app:app", "flush", "--json", cwd=tmp_path)

    assert json.loads(written.stdout)["id"]
    assert json.loads(done.stdout)["completed"] == 1
    assert "at work" in done.stderr


# ── enqueue and look ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_in_json_has_the_keys_of_the_contract_in_order(run, enqueued):
    job_id = enqueued(
        "add", '--payload={"a": 1, "b": "é"}', "--tag=x", "--tag=y", "--priority=high", "--unique-key=k 1"
    )

    job = json.loads(run("job", str(job_id), "--json").stdout)

    assert tuple(job) == JOB_KEYS
    assert job["id"] == job_id
    assert (job["payload"], job["tags"], job["priority"]) == ({"a": 1, "b": "é"}, ["x", "y"], "high")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", job["created_at"])


@pytest.mark.parametrize("ways", ["option", "file", "stdin"])
def test_a_payload_comes_from_an_option_a_file_or_standard_input(run, tmp_path, ways):
    text = '{"value": "작업 \\\\ \\" é"}'
    (tmp_path / "payload.json").write_text(text)
    given = {"option": text, "file": f"@{tmp_path}/payload.json", "stdin": "-"}[ways]

    job_id = run("enqueue", "echo", "--payload", given, stdin=text).stdout.strip()

    assert json.loads(run("job", job_id, "--json").stdout)["payload"] == json.loads(text)


def test_the_handlers_own_options_count_when_the_application_is_known(run):
    job_id = run("--app", APP, "enqueue", "elsewhere").stdout.strip()

    job = json.loads(run("job", job_id, "--json").stdout)

    assert (job["queue"], job["priority"], job["max_attempts"]) == ("other", "high", 7)


def test_a_unique_key_gives_the_job_that_has_it(enqueued):
    first = enqueued("ok", "--unique-key=once")

    assert enqueued("ok", "--unique-key=once") == first


def test_what_becomes_of_a_duplicate_is_said_on_the_command_line(run, enqueued):
    first = enqueued("echo", '--payload={"value": 1}', "--unique-key=k", "--unique-for=1h")

    refused = run(
        "enqueue", "echo", '--payload={"value": 2}', "--unique-key=k", "--on-duplicate=error", code=6
    )
    left_out = run(
        "enqueue", "echo", '--payload={"value": 2}', "--unique-key=k", "--on-duplicate=skip", "--json"
    )
    replaced = enqueued("echo", '--payload={"value": 3}', "--unique-key=k", "--on-duplicate=replace")

    assert f"job {first} has the unique key 'k'" in refused.stderr
    assert json.loads(left_out.stdout) == {"id": None}
    assert "another job holds the unique key" in left_out.stderr
    assert replaced == first
    assert json.loads(run("job", str(first), "--json").stdout)["payload"] == {"value": 3}


def test_lines_of_a_file_may_be_unique(run):
    lines = [f'{{"handler": "echo", "payload": {{"value": {n % 2}}}, "unique": true}}' for n in range(4)]
    lines += ['{"handler": "ok", "unique_key": "k", "unique_for": 60, "on_duplicate": "skip"}'] * 2

    first = run("enqueue", "--many=-", "--json", stdin="\n".join(lines))
    second = run("enqueue", "echo", "--many=-", "--unique", stdin='{"value": 0}\n{"value": 2}\n')

    assert json.loads(first.stdout)["count"] == 3
    assert second.stdout == "2 jobs enqueued\n"


def test_a_past_due_time_means_now_and_a_far_one_can_be_shown(run, enqueued):
    enqueued("ok", "--at=1970-01-01T00:00:00Z")
    far = enqueued("ok", "--at=9999-12-31T23:59:59Z")

    status = json.loads(run("status", "--json").stdout)
    assert (status["due"], status["later"]) == (1, 1)
    assert "9999-12-31T23:59:59Z" in run("job", str(far), "--json").stdout
    assert "9999" in run("jobs").stdout


def test_many_payloads_are_written_at_once(run):
    done = run("enqueue", "echo", "--many=-", "--queue=bulk", stdin='{"value": 1}\n\n{"value": 2}\n')

    assert done.stdout == "2 jobs enqueued\n"
    jobs = json.loads(run("jobs", "--queue=bulk", "--json").stdout)
    assert [job["payload"]["value"] for job in jobs] == [2, 1]


def test_many_lines_may_name_their_own_handlers_and_options(run, tmp_path):
    lines = [
        {"handler": "ok"},
        {"handler": "add", "payload": {"a": 1, "b": 2}, "queue": "other", "delay": "1h", "tags": ["t"]},
    ]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)))

    told = json.loads(run("enqueue", "--many", str(tmp_path / "jobs.jsonl"), "--json").stdout)

    assert told["count"] == 2
    second, first = json.loads(run("jobs", "--json").stdout)
    assert (first["handler"], first["queue"]) == ("ok", "default")
    assert (second["handler"], second["queue"], second["tags"]) == ("add", "other", ["t"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "the line is a list"),
        ("{}", "names no handler"),
        ('{"handler": "a b"}', "handler name 'a b'"),
        ('{"handler": "ok", "payload": []}', "not an object"),
        ('{"handler": "ok", "que": "x"}', "unknown key 'que'"),
        ('{"handler": "ok", "delay": -5}', "delay"),
        ('{"handler": "ok", "at": "2030-01-01T00:00:00"}', "no offset"),
        ('{"handler": "ok", "queue": 5}', "queue"),
        ('{"handler": "ok", "priority": "most"}', "priority"),
    ],
)
def test_a_bad_line_is_told_with_its_number(run, conn, line, said):
    done = run("enqueue", "--many=-", code=2, stdin=f'{{"handler": "ok"}}\n{line}\n')

    assert "standard input, line 2" in one_line(done)
    assert said in done.stderr
    assert conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone() == (0,)


def test_a_list_goes_on_page_by_page(run):
    run("enqueue", "ok", "--many=-", stdin="{}\n" * 5)

    first = json.loads(run("jobs", "--json", "--limit=3").stdout)
    second = json.loads(run("jobs", "--json", "--limit=3", f"--after={first[-1]['id']}").stdout)

    ids = [job["id"] for job in first + second]
    assert len(ids) == 5
    assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize("command", ["job", "events", "cancel", "retry", "bury", "delete"])
def test_an_unknown_id_is_one_line_and_exit_code_5(run, command):
    done = run(command, "4711", code=5)

    assert "4711" in one_line(done)


def test_a_reader_that_has_enough_ends_a_list_quietly(run, database):
    run("enqueue", "ok", "--many=-", stdin="{}\n" * 5000)

    done = subprocess.run(
        f"set -o pipefail; {QUEUETY} jobs --limit=5000 | head -1",
        shell=True,
        executable="/bin/bash",
        env=environment(database),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_do_no_harm(run, database, closed):
    done = subprocess.run(
        f"{QUEUETY} enqueue ok {closed}; {QUEUETY} status {closed}; {QUEUETY} --app {APP} flush {closed}",
        shell=True,
        env=environment(database),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0
    assert "Error" not in done.stderr
    assert json.loads(run("status", "--json").stdout)["completed"] == 1


@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_an_ascii_terminal_gets_escapes(run, enqueued, json_):
    job_id = enqueued("echo", '--payload={"value": "작업 é \U0001f600"}', "--queue=작업")

    done = run("job", str(job_id), *json_, PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert done.stdout.isascii()
    if json_:
        assert json.loads(done.stdout)["payload"]["value"] == "작업 é \U0001f600"


def test_what_a_terminal_would_obey_is_escaped(run, enqueued):
    job_id = enqueued("echo", "--payload", json.dumps({"value": "\x1b[2J\x9b2J"}))

    assert "\x1b" not in run("job", str(job_id)).stdout
    assert "\x9b" not in run("jobs").stdout


def on_a_terminal(url: str, *arguments: str, answer: str = "") -> tuple[int, str]:
    """Run a command on a pseudo-terminal; returns its exit code and all that it showed."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [QUEUETY, *arguments],
        env=environment(url, COLUMNS="80", TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while piece := os.read(ours, 4096):
                shown += piece
        os.close(ours)
    return process.returncode, re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown.decode())


def test_a_terminal_gets_a_table_whose_words_are_whole(run, database):
    run("enqueue", "echo", "--payload", json.dumps({"value": "x" * 200}))

    code, shown = on_a_terminal(database, "jobs")

    assert code == 0
    assert re.search(r"echo +pending +normal +0/3 +\d{4}-\d\d-\d\d", shown)


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
def test_a_terminal_is_asked_before_many_jobs_are_deleted(run, enqueued, database, answer, left):
    run("bury", str(enqueued("ok")))

    code, shown = on_a_terminal(database, "purge", answer=answer)

    assert code == 0
    assert "Delete 1 job?" in shown
    assert json.loads(run("status", "--json").stdout)["buried"] == left


# ── act ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_several_ids_are_all_tried(run, enqueued):
    ids = [str(enqueued("ok")) for _ in range(2)]

    done = run("cancel", ids[0], "4711", ids[1], code=7)

    assert done.stdout == f"job {ids[0]} cancelled\njob {ids[1]} cancelled\n"
    assert "4711" in one_line(done)


def test_a_state_that_forbids_it_is_exit_code_6(run, enqueued):
    job_id = str(enqueued("ok"))
    run("bury", job_id, "--reason=on purpose")

    assert "buried" in one_line(run("cancel", job_id, code=6))
    assert json.loads(run("job", job_id, "--json").stdout)["error"]["message"] == "on purpose"
    assert run("cancel", job_id, "4711", code=6)


def test_a_buried_job_is_retried_deleted_and_gone(run, enqueued):
    job_id = str(enqueued("ok"))
    run("bury", job_id)

    run("retry", job_id)
    assert json.loads(run("job", job_id, "--json").stdout)["state"] == "pending"
    run("delete", job_id)
    run("job", job_id, code=5)


def test_bulk_commands_look_first_and_need_a_yes_off_a_terminal(run, enqueued):
    for queue in ("a", "a", "b"):
        run("bury", str(enqueued("ok", f"--queue={queue}")))

    assert "2 jobs would be retried" in run("retry", "--buried", "--queue=a", "--dry-run").stdout
    run("retry", "--buried", "--queue=a", code=2)
    assert "2 jobs retried" in run("retry", "--buried", "--queue=a", "--yes").stdout
    assert json.loads(run("purge", "--dry-run", "--json").stdout)["buried"] == 1
    assert "--yes" in one_line(run("purge", code=2))
    assert "0 jobs deleted" in run("purge", "--yes", "--older-than=1h").stdout
    assert "1 job deleted: 1 buried" in run("purge", "--yes").stdout
    assert json.loads(run("status", "--json").stdout)["pending"] == 2


def test_recover_says_what_it_did(run):
    assert run("recover").stdout.startswith("0 jobs recovered: 0 retried, 0 buried")
    assert json.loads(run("recover", "--json").stdout)["total"] == 0


def test_a_paused_queue_stays_paused_and_one_shot_commands_say_so(run, enqueued):
    enqueued("ok", "--queue=mail")
    run("pause", "mail", "--reason=provider is down")

    flushed = run("--app", APP, "flush", "--queue=mail")
    once = run("--app", APP, "work", "--once", "--queue=mail")

    assert flushed.stdout == once.stdout == "0 jobs\nqueue mail is paused: 1 job left there\n"
    assert "provider is down" in run("queues").stdout
    assert run("resume", "mail").stdout == "queue mail goes on\n"
    assert "1 completed" in run("--app", APP, "flush", "--queue=mail").stdout


# ── the pool ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_flush_says_how_many_ended_how_and_what_is_due_later(run, enqueued):
    enqueued("ok")
    enqueued("follow_up", '--payload={"depth": 2}')
    enqueued("permanent")
    enqueued("ok", "--delay=1h")

    done = run("--app", APP, "flush", "--workers=2")

    assert done.stdout == "5 jobs: 4 completed, 1 buried; 1 due later\n"


@pytest.mark.alone
def test_flush_of_nothing_ends_at_once(run, enqueued):
    enqueued("ok", "--delay=1h")
    began = time.monotonic()

    done = run("--app", APP, "flush")

    assert done.stdout == "0 jobs; 1 due later\n"
    assert time.monotonic() - began < 5


def test_flush_can_fail_on_buried_jobs(run, enqueued):
    enqueued("permanent")

    run("--app", APP, "flush", "--fail-on-buried", code=8)
    run("--app", APP, "flush", "--fail-on-buried")


def test_once_runs_at_most_one_job(run, enqueued):
    for name in ("fail", "ok", "ok"):
        enqueued(name)

    assert "1 job: 1 retried" in run("--app", APP, "work", "--once").stdout
    assert "1 job: 1 completed" in run("--app", APP, "work", "--once").stdout
    assert json.loads(run("status", "--json").stdout)["pending"] == 2


def test_one_worker_ends_after_exactly_so_many_jobs(run):
    run("enqueue", "ok", "--many=-", stdin="{}\n" * 20)

    run("--app", APP, "work", "--max-jobs=5")

    status = json.loads(run("status", "--json").stdout)
    assert (status["completed"], status["pending"]) == (5, 15)


def test_queues_are_worked_in_the_order_given(run, enqueued, tmp_path):
    ids = [enqueued("ok", f"--queue={queue}") for queue in ("low", "default", "critical")]
    ledger = tmp_path / "ledger"

    run("--app", APP, "flush", "--queue=critical, default ,low", QUEUETY_TEST_LEDGER=str(ledger))

    started = [int(line.split()[0]) for line in ledger.read_text().splitlines() if " start " in line]
    assert started == ids[::-1]


def test_waiting_prints_the_result_or_tells_the_failure(run, database):
    pool = subprocess.Popen([QUEUETY, "--app", APP, "work"], env=environment(database), cwd="/")
    try:
        good = run("--app", APP, "enqueue", "add", '--payload={"a": 20, "b": 22}', "--wait")
        bad = run("--app", APP, "enqueue", "permanent", "--wait", code=6)
    finally:
        pool.terminate()

    assert good.stdout == "42\n"
    assert "no such user" in one_line(bad)
    assert pool.wait(20) == 0


@pytest.mark.parametrize("types", ["journal", "public"])
def test_a_limit_of_what_is_followed_is_refused(run, types):
    done = run("events", "1", f"--types={types}", "--limit=1", "--follow", code=2)

    assert "--limit=1 and --follow" in done.stderr


def test_events_can_be_followed_to_the_end(run, database):
    job_id = run("--app", APP, "enqueue", "ok").stdout.strip()
    follower = subprocess.Popen(
        [QUEUETY, "events", job_id, "--follow", "--json"],
        env=environment(database),
        stdout=subprocess.PIPE,
        text=True,
    )

    run("--app", APP, "flush")

    out, _ = follower.communicate(timeout=20)
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert types == ["enqueued", "started", "completed"]


def test_what_viewers_get_can_be_followed_from_any_event_on(run, database):
    job_id = run("--app", APP, "enqueue", "ok").stdout.strip()
    run("--app", APP, "flush")

    followed = run("events", job_id, "--types=public", "--follow", "--json").stdout.splitlines()
    listed = json.loads(run("events", job_id, "--types=public", "--json").stdout)
    rest = run("events", job_id, "--types=public", "--after=0.1").stdout.splitlines()

    assert [json.loads(line) for line in followed] == listed
    assert [event["type"] for event in listed] == ["job.started", "job.completed"]
    assert len(rest) == 1
    assert "0.2  job.completed" in rest[0]


def test_a_follower_that_is_interrupted_ends_quietly(enqueued, database):
    follower = subprocess.Popen(
        [QUEUETY, "events", str(enqueued("ok")), "--follow"],
        env=environment(database),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert follower.stdout is not None
    follower.stdout.readline()

    follower.send_signal(signal.SIGINT)

    _, said = follower.communicate(timeout=10)
    assert (follower.returncode, said) == (130, b"")


def test_the_supervisor_holds_no_database_code(database):
    pool = subprocess.Popen([QUEUETY, "--app", APP, "work"], env=environment(database), cwd="/")
    try:
        wait_until(lambda: children(pool.pid) >= 2)
        mapped = Path(f"/proc/{pool.pid}/maps").read_text()
    finally:
        pool.send_signal(signal.SIGTERM)

    assert pool.wait(20) == 0
    assert "psycopg" not in mapped
    assert "sqlalchemy" not in mapped


def wait_until(true: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def child_ids(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def children(pid: int) -> int:
    return len(child_ids(pid))


def test_a_pool_that_is_stopped_while_it_checks_leaves_nothing_behind(tmp_path, database):
    (tmp_path / "slow_app.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    pool = subprocess.Popen(
        [QUEUETY, "--app", "slow_app:app", "work"], env=environment(database), cwd=tmp_path
    )
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())

    pool.terminate()

    assert pool.wait(5) == 0
    assert not Path(f"/proc/{child}").exists()


def test_too_few_connections_are_told_with_the_numbers(login, conn):
    from psycopg import sql

    url = login("cli_few")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO cli_few")
    conn.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuety TO cli_few")
    conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuety TO cli_few")
    conn.execute(sql.SQL("ALTER ROLE cli_few CONNECTION LIMIT 4"))
    queuety("enqueue", "ok", "--many=-", url=url, stdin="{}\n" * 50)

    pool = subprocess.Popen(
        [QUEUETY, "--app", APP, "work", "--workers=6"],
        env=environment(url),
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
    )
    done = "SELECT count(*) = 50 FROM queuety.finished_jobs"
    wait_until(lambda: conn.execute(done).fetchone() == (True,))
    pool.terminate()

    _, said = pool.communicate(timeout=20)
    assert "6 workers, their keeper and one more" in said
    assert "need 8 connections, but the server has 4 to spare" in said
    assert pool.returncode == 0


def test_log_lines_for_machines_are_json(run):
    run("enqueue", "fail")

    done = run("--app", APP, "--log-format=json", "flush")

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(line["level"] == "warning" and "on purpose" in line["message"] for line in lines)
    assert all(line["time"].endswith("Z") and line["pid"] for line in lines)


def test_jobs_are_run_though_nobody_reads_what_they_print(run, database):
    run("enqueue", "say", "--many=-", stdin='{"times": 50}\n' * 50)

    done = subprocess.run(
        f"{QUEUETY} --app {APP} flush 2>&1 | head -1",
        shell=True,
        env=environment(database),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.count("\n") == 1
    assert json.loads(run("status", "--json").stdout)["completed"] == 50
