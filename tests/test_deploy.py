"""The shipped configurations: what they promise, under the real supervisord, and what they say to systemd.

The shipped files themselves are run, with their placeholders filled in.
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from xmlrpc.client import ServerProxy

import click
import psutil
import pytest
from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from queuety import Queuety
from queuety.cli.main import cli
from queuety.features import schedules
from queuety.model import NewJob, NewSchedule
from queuety.process.scheduler import LAST_CALLS_S, LEAVE_S
from queuety.process.supervisor import SETTLE_S
from queuety.units import seconds
from queuety.web.server import STOP_S
from tests import ROOT
from tests.daemon import APP, daemon, read_ledger, remaining, until

DEPLOY = ROOT / "deploy"
SCHEDULER_PROGRAM = DEPLOY / "supervisord" / "scheduler.conf"
SCHEDULER_UNIT = DEPLOY / "systemd" / "queuety-scheduler.service"
WEB_UNIT = DEPLOY / "systemd" / "queuety-web.service"
PROGRAMS = sorted({*(DEPLOY / "supervisord").glob("*.conf")} - {SCHEDULER_PROGRAM})
UNITS = sorted({*(DEPLOY / "systemd").glob("*.service")} - {SCHEDULER_UNIT, WEB_UNIT})
FILES = [*PROGRAMS, *UNITS, SCHEDULER_PROGRAM, SCHEDULER_UNIT, WEB_UNIT]
TARGET = DEPLOY / "systemd" / "queuety-both.target"
QUEUETY = Path(sys.executable).with_name("queuety")
QUEUES = ("critical", "default", "low")
LEAVING_S = 2 * SETTLE_S + 1  # after a cut: the database is told, the keeper is let go

# What another start cannot better, or what somebody wanted; the rest of the contract's codes is started again.
LEFT_ALONE = {0, 2, 4, 70, 75, 130}


def fill(path: Path, **values: object) -> str:
    """A shipped file with its placeholders filled in."""
    text = path.read_text()
    known = {
        "QUEUETY": QUEUETY,
        "DIRECTORY": ROOT,
        "APP": APP,
        "USER": getpass.getuser(),
        **values,
    }
    return re.sub(r"@([A-Z_]+)@", lambda found: str(known[found[1]]), text)


# ── supervisord ───────────────────────────────────────────────────────────────────────────────────────────────


class Supervisord:
    """A real supervisord in the foreground, spoken to by the real supervisorctl."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process

    def ctl(self, *words: str) -> None:
        """Run supervisorctl and wait for its end."""
        configuration = str(self.directory / "supervisord.conf")
        command = [sys.executable, "-m", "supervisor.supervisorctl", "-c", configuration, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """State of each program by its name, such as RUNNING."""
        transport = SupervisorTransport(None, None, f"unix://{self.directory}/socket")
        with ServerProxy("http://localhost", transport) as server:
            rows: Any = server.supervisor.getAllProcessInfo()
        return {row["name"]: row["statename"] for row in rows}

    def pools(self) -> list[psutil.Process]:
        """The pools' supervisors."""
        return psutil.Process(self.process.pid).children()

    def workers(self) -> set[int]:
        """Process ids of workers that can claim."""
        found = set()
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = " ".join(process.cmdline())
                if "queuety: worker" in words and "starts" not in words:
                    found.add(process.pid)
        return found

    def log(self) -> str:
        """What supervisord has said, and the pools."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))


@contextmanager
def supervisord(program: str, ledger: Path) -> Iterator[Supervisord]:
    """Run supervisord with this configuration of programs; @LOGS@ in it is its directory."""
    # Not pytest's folder: the path of a socket is at most some hundred characters long.
    directory = Path(tempfile.mkdtemp(prefix="queuety-supervisord-"))
    (directory / "programs.conf").write_text(program.replace("@LOGS@", str(directory)))
    (directory / "supervisord.conf").write_text(
        f"""
[unix_http_server]
file={directory}/socket
[supervisord]
nodaemon=true
user={getpass.getuser()}
logfile={directory}/supervisord.log
pidfile={directory}/pid
environment=QUEUETY_TEST_LEDGER="{ledger}"
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{directory}/socket
[include]
files=programs.conf
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-c", directory / "supervisord.conf"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    running = Supervisord(directory, process)
    try:
        until((directory / "socket").exists, what="supervisord")
        yield running
    except BaseException:
        sys.stderr.write(running.log())
        raise
    finally:
        _end(process)
        shutil.rmtree(directory, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill supervisord and all below it: an orderly end takes its time, and has a test of its own."""
    everybody = []
    with suppress(psutil.NoSuchProcess):
        everybody = psutil.Process(process.pid).children(recursive=True)
    process.kill()  # first, or it would start others
    process.wait(10)
    for one in everybody:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    remaining(everybody, 10)


def shipped(path: Path, url: str, **values: object) -> str:
    """A shipped program for this database, whose logs go where supervisord() says."""
    return fill(path, **{"DATABASE_URL": url.replace("%", "%%"), "LOGS": "@LOGS@", **values})


def parsed(path: Path) -> RawConfigParser:
    """A configuration of supervisord, read as supervisord does."""
    parser = RawConfigParser(inline_comment_prefixes=(" ;",), strict=True)
    parser.read_string(path.read_text())
    return parser


def sections(path: Path) -> dict[str, dict[str, str]]:
    """The programs of a file by name."""
    parser = parsed(path)
    return {
        name.removeprefix("program:"): dict(parser[name])
        for name in parser.sections()
        if name.startswith("program:")
    }


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def told(ledger: Path) -> tuple[Counter[int], Counter[int]]:
    """How often each job was started and ended, as the handlers note it."""
    entries = read_ledger(ledger)
    return tuple(Counter(one.job for one in entries if one.what == what) for what in ("start", "end"))  # type: ignore[return-value]


def stored(conn: Any) -> Counter[tuple[str, int]]:
    """How many jobs are in each state with so many attempts."""
    rows = conn.execute("SELECT state::text, attempts FROM queuety.all_jobs").fetchall()
    return Counter((row[0], row[1]) for row in rows)


def some_jobs(url: str, each: int, handler_seconds: float) -> int:
    """Enqueue for each queue; returns how many in all."""
    app = Queuety(url)
    for _ in range(each):
        for queue in QUEUES:
            app.enqueue("sleep", {"seconds": handler_seconds}, queue=queue)
    return each * len(QUEUES)


@pytest.mark.parametrize(
    "path",
    # The others are run below, too: a second time only where time does not matter.
    [pytest.param(path, marks=() if "per-queue" in path.stem else pytest.mark.soak) for path in PROGRAMS],
    ids=lambda path: path.stem,
)
def test_supervisorctl_stop_lets_what_runs_finish_and_leaves_the_rest(path, database, conn, ledger):
    count = some_jobs(database, 20, 0.4)

    with supervisord(shipped(path, database), ledger) as running:
        until(lambda: len(told(ledger)[0]) >= 3)
        running.ctl("stop", "all")
        states, pools, log = running.states(), running.pools(), running.log()

    assert set(states) == set(sections(path))
    assert set(states.values()) == {"STOPPED"}
    assert pools == []
    assert log.count("(exit status 0)") == len(states)
    started, ended = told(ledger)
    assert started == ended
    assert 0 < len(started) < count
    assert stored(conn) == {("completed", 1): len(started), ("pending", 0): count - len(started)}


def test_supervisorctl_restart_with_jobs_in_flight_runs_each_once(database, conn, ledger):
    path = DEPLOY / "supervisord" / "both.conf"
    count = some_jobs(database, 6, 0.3)

    with supervisord(shipped(path, database), ledger) as running:
        until(lambda: len(told(ledger)[0]) >= 3)
        before = set(running.pools())
        running.ctl("restart", "queuety:*")
        states, after = running.states(), set(running.pools())
        until(lambda: stored(conn) == {("completed", 1): count})

    assert set(states.values()) == {"RUNNING"}
    assert len(before) == len(after) == 2
    assert not before & after
    assert told(ledger)[0] == told(ledger)[1]
    assert set(told(ledger)[0].values()) == {1}


def test_a_pool_whose_supervisor_is_killed_is_replaced_and_its_jobs_run_once(database, conn, ledger):
    path = DEPLOY / "supervisord" / "prioritised-pool.conf"
    count = some_jobs(database, 6, 0.3)

    with supervisord(shipped(path, database), ledger) as running:
        until(lambda: len(told(ledger)[0]) >= 3)
        victim = running.pools()[0]
        orphans = victim.children(recursive=True)
        victim.kill()
        until(lambda: stored(conn) == {("completed", 1): count})
        alive = remaining(orphans, 10)
        after = running.pools()

    assert alive == []
    assert [one.pid for one in after] != [victim.pid]
    assert len(after) == 1
    assert told(ledger)[0] == told(ledger)[1]
    assert set(told(ledger)[0].values()) == {1}


def test_what_another_start_cannot_better_is_left_alone(database, tmp_path, ledger):
    """Exit codes as supervisord understands them: a clean end, an import error at once, and one that takes long."""
    path = DEPLOY / "supervisord" / "prioritised-pool.conf"
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "slowly.py").write_text("import time\ntime.sleep(2)\nimport no_such_module\n")
    programs = [
        shipped(path, database, APP=app, DIRECTORY=place)
        .replace("[program:queuety]", f"[program:{name}]")
        .replace("startretries=20", "startretries=1")  # each try waits longer than the one before
        .replace("startsecs=2", f"startsecs={start_s}")
        for name, app, place, start_s in (
            ("sound", APP, ROOT, 1),
            ("broken", "broken:app", tmp_path, 30),
            ("slowly", "slowly:app", tmp_path, 1),
        )
    ]

    with supervisord("".join(programs), ledger) as running:
        until(lambda: running.states()["sound"] == "RUNNING")
        running.ctl("signal", "TERM", "sound")
        until(lambda: set(running.states().values()) == {"EXITED", "FATAL"})
        time.sleep(1.5)  # as long as a further try would take to show
        states, log = running.states(), running.log()

    assert states == {"sound": "EXITED", "broken": "FATAL", "slowly": "EXITED"}
    assert log.count("spawned: 'sound'") == 1
    assert log.count("spawned: 'broken'") == 2
    assert log.count("spawned: 'slowly'") == 1
    assert log.count("exited: slowly (exit status 70; expected)") == 1
    assert log.count("No module named 'no_such_module'") == 3


@pytest.mark.soak
def test_a_hang_up_by_supervisorctl_replaces_the_workers_and_no_job_notices(database, conn, ledger):
    path = DEPLOY / "supervisord" / "prioritised-pool.conf"
    count = some_jobs(database, 5, 0.3)

    with supervisord(shipped(path, database).replace("--workers=4", "--workers=2"), ledger) as running:
        until(lambda: len(running.workers()) == 2 and len(told(ledger)[0]) >= 3)
        pools, before = running.pools(), running.workers()
        running.ctl("signal", "HUP", "queuety")
        until(lambda: len(running.workers() - before) == 2 and not running.workers() & before)
        until(lambda: stored(conn) == {("completed", 1): count})
        after = running.pools()

    assert after == pools
    assert set(told(ledger)[0].values()) == {1}


@pytest.mark.soak
def test_a_drain_that_takes_too_long_is_cut_before_supervisord_kills(database, conn, ledger):
    path = DEPLOY / "supervisord" / "prioritised-pool.conf"
    Queuety(database).enqueue("sleep", {"seconds": 60})
    program = shipped(path, database).replace("--stop-timeout=30s", "--stop-timeout=2s")

    with supervisord(program.replace("stopwaitsecs=45", "stopwaitsecs=17"), ledger) as running:
        until(lambda: told(ledger)[0])
        began = time.monotonic()
        running.ctl("stop", "queuety")
        took, states, log = time.monotonic() - began, running.states(), running.log()

    assert states == {"queuety": "STOPPED"}
    assert "(exit status 75)" in log
    assert took < 2 + LEAVING_S
    assert stored(conn) == {("pending", 0): 1}


@pytest.mark.soak
def test_a_database_that_is_away_at_the_start_is_tried_again(database, tmp_path, ledger):
    path = DEPLOY / "supervisord" / "prioritised-pool.conf"
    job = Queuety(database).enqueue("ok")
    place = parse_qs(urlsplit(database).query)["host"][0]
    link = Path(tempfile.mkdtemp(prefix="queuety-away-")) / "socket"

    with supervisord(shipped(path, database.replace(quote(place, safe=""), str(link))), ledger) as running:
        until(lambda: running.log().count("exit status 3") >= 2)
        states = running.states()
        link.symlink_to(place)
        until(lambda: told(ledger)[1])
    shutil.rmtree(link.parent)

    assert states["queuety"] in ("BACKOFF", "STARTING")
    assert told(ledger)[0] == {job.id: 1}


def test_a_scheduler_under_supervisord_fires_and_stops_at_once(database, conn, ledger):
    schedules.add(conn, NewSchedule("tick", NewJob("ok", "{}"), every_s=1.0))

    with supervisord(shipped(SCHEDULER_PROGRAM, database), ledger) as running:
        until(lambda: stored(conn)[("pending", 0)] >= 2)
        running.ctl("stop", "all")
        states, log = running.states(), running.log()

    assert states == {"queuety-scheduler": "STOPPED"}
    assert log.count("(exit status 0)") == 1


# ── process 1 ─────────────────────────────────────────────────────────────────────────────────────────────────


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _can_unshare() -> bool:
    try:
        return (
            subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=10, check=False).returncode == 0
        )
    except OSError:
        return False


@pytest.mark.skipif(not _can_unshare(), reason="no process namespaces here")
def test_a_pool_is_a_good_process_1(database, tmp_path, ledger):
    """As in a container without tini: it heeds TERM, which process 1 gets no default for, and collects strays."""
    app = Queuety(database)

    with daemon(
        database, app="tests.apps.strays:app", ledger=ledger, log=tmp_path / "log", prefix=UNSHARE
    ) as pool:
        for _ in range(5):
            app.enqueue("stray").wait(timeout=20)
        first = psutil.Process(pool.pid).children()[0]
        until(lambda: [one.status() for one in first.children()].count(psutil.STATUS_ZOMBIE) == 0)
        until(lambda: len(first.children()) == 2, what="none but a worker and the keeper")
        first.send_signal(signal.SIGTERM)
        code = pool.wait(5)

    assert code == 0
    assert len(told(ledger)[1]) == 5


# ── what the files say ────────────────────────────────────────────────────────────────────────────────────────


def unit(path: Path) -> dict[str, list[str]]:
    """Every setting of a unit file by `Section.Key`; a key may stand more than once."""
    found: dict[str, list[str]] = {}
    section = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
            continue
        key, equals, value = line.partition("=")
        well_formed = section and equals and re.fullmatch(r"[A-Z][A-Za-z]+", key)
        assert well_formed, f"{path.name}, line {number}: {line}"
        found.setdefault(f"{section}.{key}", []).append(value)
    return found


def options(command: str) -> dict[str, Any]:
    """What `queuety` reads from a command line of these files; fails as the command would."""
    for placeholder, value in {
        "${QUEUES}": "critical,default",
        "${WORKERS}": "4",
        "%(host_node_name)s": "host",
        "%H": "host",
        "%i": "critical",
    }.items():
        command = command.replace(placeholder, value)
    program, name, *rest = shlex.split(command)
    assert program == "@QUEUETY@"
    group = click.Context(cli, info_name="queuety")
    found = cli.get_command(group, name)
    assert found is not None
    return found.make_context(name, rest, parent=group).params


def drain_s(command: str) -> float:
    given = options(command)["worker_stop_timeout"]
    assert given is not None, "the drain time stands beside the time after which everybody is killed"
    return seconds(given)


@pytest.mark.parametrize("path", [*FILES, TARGET], ids=lambda path: path.name)
def test_a_shipped_file_says_in_two_lines_when_to_use_it(path):
    lines = path.read_text().splitlines()
    sign = ";" if path.suffix == ".conf" else "#"

    assert all(len(line) > 60 and line.startswith(f"{sign} ") for line in lines[:2])
    assert lines[2] == sign
    assert "Use it" in lines[0] or "Enable" in lines[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_placeholder_is_explained_at_the_top(path):
    head, _, body = path.read_text().partition("\n\n")

    assert set(re.findall(r"@[A-Z_]+@", head)) == set(re.findall(r"@[A-Z_]+@", body))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_supervisord_kills_only_after_the_drain_time(path):
    for program in sections(path).values():
        assert float(program["stopwaitsecs"]) > drain_s(program["command"]) + LEAVING_S
        assert program["stopsignal"] == "TERM"
        assert program["stopasgroup"] == program["killasgroup"] == "false"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_kills_only_after_the_drain_time(path):
    found = unit(path)

    (limit,), (command,) = found["Service.TimeoutStopSec"], found["Service.ExecStart"]
    assert seconds(limit) > drain_s(command) + LEAVING_S
    assert found["Service.KillSignal"] == ["SIGTERM"]
    assert found["Service.KillMode"] == ["mixed"]
    assert found["Service.ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_all_of_them_start_again_after_the_same_exit_codes():
    for path in PROGRAMS:
        for program in sections(path).values():
            assert program["autorestart"] == "unexpected"
            assert {int(code) for code in program["exitcodes"].split(",")} == LEFT_ALONE
    for path in UNITS:
        found = unit(path)
        assert found["Service.Restart"] == ["on-failure"]  # which leaves 0 alone by itself
        assert {int(code) for code in found["Service.RestartPreventExitStatus"][0].split()} == LEFT_ALONE - {
            0
        }


def test_a_scheduler_is_started_again_after_the_same_exit_codes_but_for_that_of_cut_jobs():
    program, found = sections(SCHEDULER_PROGRAM)["queuety-scheduler"], unit(SCHEDULER_UNIT)

    codes = LEFT_ALONE - {75}
    assert {int(code) for code in program["exitcodes"].split(",")} == codes
    assert program["autorestart"] == "unexpected"
    assert {int(code) for code in found["Service.RestartPreventExitStatus"][0].split()} == codes - {0}
    assert found["Service.Restart"] == ["on-failure"]


def test_a_scheduler_is_killed_only_after_the_time_that_it_takes_to_leave():
    program, found = sections(SCHEDULER_PROGRAM)["queuety-scheduler"], unit(SCHEDULER_UNIT)

    assert (
        min(float(program["stopwaitsecs"]), seconds(found["Service.TimeoutStopSec"][0]))
        > LEAVE_S + LAST_CALLS_S
    )
    assert program["stopsignal"] == "TERM"
    assert found["Service.KillSignal"] == ["SIGTERM"]
    assert "Service.ExecReload" not in found  # it does not load new code
    assert options(program["command"])["name"] == options(found["Service.ExecStart"][0])["name"] == "host"


def test_the_units_of_pool_and_scheduler_confine_alike():
    def confines(path: Path) -> dict[str, list[str]]:
        return {
            key: value
            for key, value in unit(path).items()
            if re.match(r"Service\.(Protect|Restrict|Private|No|Lock|System|Cap|UMask|User)", key)
        }

    assert confines(SCHEDULER_UNIT) == confines(WEB_UNIT) == confines(UNITS[0])


def test_the_http_api_asks_for_tokens_and_is_killed_only_after_the_time_that_requests_have():
    found = unit(WEB_UNIT)

    (command,) = found["Service.ExecStart"]
    assert "web --auth" in command
    assert seconds(found["Service.TimeoutStopSec"][0]) > 2 * STOP_S
    assert {int(code) for code in found["Service.RestartPreventExitStatus"][0].split()} == LEFT_ALONE - {
        0,
        75,
    }


def test_the_programs_differ_in_their_command_alone():
    programs = [program for path in PROGRAMS for program in sections(path).values()]

    assert len({tuple(value for key, value in one.items() if key != "command") for one in programs}) == 1


def test_the_two_services_differ_in_what_they_work_on_alone():
    own = {"Unit.Description", "Service.ExecStart", "Service.Environment", "Service.EnvironmentFile"}
    first, second = ({key: value for key, value in unit(path).items() if key not in own} for path in UNITS)

    assert first == second


def test_the_target_names_units_that_are_shipped():
    wanted = unit(TARGET)["Unit.Wants"][0].split()

    assert {re.sub(r"@\w+\.", "@.", name) for name in wanted} == {path.name for path in UNITS}
    for path in UNITS:
        assert unit(path)["Unit.PartOf"] == [TARGET.name]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    for path in (*UNITS, SCHEDULER_UNIT, WEB_UNIT, TARGET):
        (tmp_path / path.name.replace("@.", "@critical.")).write_text(fill(path))
    names = [
        str(tmp_path / name)
        for name in (
            "queuety@critical.service",
            "queuety.service",
            SCHEDULER_UNIT.name,
            WEB_UNIT.name,
            TARGET.name,
        )
    ]

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "queuety" not in done.stdout + done.stderr
    assert done.returncode == 0
