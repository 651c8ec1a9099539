"""Start or join the server, leave it, stop it."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from queuety.embedded.answer import ask
from queuety.embedded.binaries import find_binaries, reachable, require_binaries
from queuety.embedded.folder import ELSEWHERE, PORT, Folder, plainly
from queuety.errors import DatabaseUnreachable, UsageError, WrongState

_START_LIMIT_S = 300.0  # crash recovery and the last query of a dead server's backend may take their time
_STOP_LIMIT_S = 60.0
_NOT_ENTERED = 99

_SETTINGS = {
    "cluster_name": "queuety",
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "log",  # statements fail to their callers; a log must stay small
    "log_checkpoints": "off",
}

# Both run as the account: root writes nothing below a folder that somebody else could re-arrange.
# Made beside and renamed, so that a killed initdb never looks like data.
_INIT = f"""
cd -- "$1" || exit {_NOT_ENTERED}
rm -rf data.new &&
"$2/initdb" -D data.new -U queuety -E UTF8 --locale=C --auth-local=peer --auth-host=reject >/dev/null &&
echo 'CREATE DATABASE queuety' | "$2/postgres" --single -D data.new postgres >/dev/null &&
mv data.new data
"""
# PostgreSQL trusts the pids in these files, though the process may be a zombie or have the pid by chance.
# The shell leaves the server to init: our caller gets no child that it did not make.
_LAUNCH = f"""
cd -- "$1" || exit {_NOT_ENTERED}
rm -f data/postmaster.pid "$2" "$2.lock" &&
echo 'local all all peer map=queuety' >data/pg_hba.conf &&
printf %s "$3" >data/pg_ident.conf || exit 1
shift 3
"$@" &
"""


@dataclass(frozen=True)
class Status:
    """A look at a folder from outside.

    version:  the running server's ("18.6"), else the data's ("18"), else None: nothing there yet.
    pid:      the server's; None if it does not run or runs in another container.
    users:    somebody holds it, or is just coming or leaving.
    """

    running: bool
    url: str
    directory: Path
    version: str | None
    pid: int | None
    users: bool


class Embedded:
    """Our share in a running server, until `release`; a context manager."""

    def __init__(self, folder: Folder, users: int) -> None:
        self.url = folder.url
        self.directory = folder.path
        self._folder = folder
        self._users: int | None = users
        self._pid = os.getpid()
        atexit.register(self.release)

    def release(self) -> None:
        """Leave; the last user stops the server. Repeatable.

        A forked child shares this lock: in the child it does nothing, and in the parent it does not see the
        child, so join the workers first. Waits for the server's end; never longer than a minute.
        """
        if self._users is None or self._pid != os.getpid():
            return
        users, self._users = self._users, None
        atexit.unregister(self.release)
        with plainly(self._folder):
            _leave(self._folder, users)

    def __enter__(self) -> Embedded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def start(directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Embedded:
    """Join the server of this directory (None: `data_dir()`), or start it; made on first use.

    settings: PostgreSQL's, by name; only for the one who starts it, not for those who join.
    Raises UsageError without usable binaries, folder or user, DatabaseUnreachable if it does not come up.
    """
    folder = Folder.at(directory)
    with plainly(folder):
        folder.prepare()
        with folder.starting(_START_LIMIT_S):
            users = folder.open("users.lock")
            # Never waits: it is made exclusive only by those who hold start.lock.
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                _ensure_up(folder, settings or {})
            except BaseException:
                try:
                    _stop_if_last(folder, users)
                finally:
                    os.close(users)
                raise
    return Embedded(folder, users)


def status(directory: Path | None = None) -> Status:
    """Look, without starting or making anything."""
    folder = Folder.at(directory)
    with plainly(folder):
        folder.check_socket_dir()
        answer = ask(folder.socket)
        major = folder.major()
        return Status(
            running=answer is not None,
            url=folder.url,
            directory=folder.path,
            version=(answer and answer.version) or (str(major) if major else None),
            pid=answer.pid if answer else None,
            users=_used(folder),
        )


def stop(directory: Path | None = None, *, force: bool = False) -> bool:
    """Stop a server that nobody uses any more; whether there was one.

    force: also under its users, whose connections break.
    Raises WrongState if it is in use, DatabaseUnreachable if it does not stop.
    """
    folder = Folder.at(directory)
    with plainly(folder):
        folder.check_socket_dir()
        if not (folder.path / "start.lock").exists():
            return False
        with folder.starting(_STOP_LIMIT_S):
            if ask(folder.socket) is None:
                return False
            last = folder.try_lock("users.lock")
            if last is None and not force:
                raise WrongState(
                    f"other processes use the PostgreSQL in {folder.path}", "stop them first, or use force"
                )
            try:
                stopped = _stop(folder)
            finally:
                if last is not None:
                    os.close(last)
    if not stopped:
        raise DatabaseUnreachable(f"the PostgreSQL in {folder.path} does not stop", f"see {folder.log}")
    return True


def psql_command(directory: Path | None = None) -> list[str]:
    """The argv that opens psql on a running server, as ourselves: the server knows root as its owner.

    Raises UsageError if there is no psql.
    """
    # Not the copy in the folder: the server's account could change that, and root would run it.
    found = find_binaries()
    beside = found and shutil.which("psql", path=found.bin)
    psql = beside or shutil.which("psql")
    if psql is None:
        raise UsageError("no psql found", "install PostgreSQL's client programs")
    return [psql, f"--dbname={Folder.at(directory).url}"]


def _ensure_up(folder: Folder, settings: Mapping[str, str]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    launched_at: int | None = None  # the size of the log then
    pause = 0.005
    while True:
        answer = ask(folder.socket)
        if answer and answer.ready:
            os.close(folder.open_log())  # keeps it bounded under a server that runs for months
            return
        if answer and answer.refusal:
            raise DatabaseUnreachable(f"the PostgreSQL in {folder.path} refuses us: {answer.refusal}")
        # Held while any process of an earlier server lives: a killed one's backend that is still in a query.
        if answer is None and (server := folder.try_lock("server.lock")) is not None:
            try:
                if launched_at is not None:
                    _explain_death(folder, launched_at)
                launched_at = _launch(folder, settings, server)
            finally:
                os.close(server)
            pause = 0.005
        if time.monotonic() > deadline:
            raise DatabaseUnreachable(
                f"the PostgreSQL in {folder.path} is not ready after {_START_LIMIT_S:g} s",
                f"see {folder.log} {ELSEWHERE}",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def _launch(folder: Folder, settings: Mapping[str, str], server: int) -> int:
    """Spawn the server, making its data first if need be; returns the size of the log before."""
    binaries = require_binaries()
    made_by = folder.major()
    if made_by not in (None, binaries.major):
        raise UsageError(
            f"{folder.data} was made by PostgreSQL {made_by}, and {binaries.bin} is {binaries.major}",
            f"name a {made_by} in QUEUETY_PG_BIN, move the folder away {ELSEWHERE}",
        )
    if made_by is None and folder.data.exists():
        raise UsageError(f"{folder.data} is not PostgreSQL's", f"move it away {ELSEWHERE}")
    bin_dir = reachable(binaries, folder)
    log = folder.open_log()
    try:
        before = os.fstat(log).st_size
        scripts = [["/bin/sh", "-c", _LAUNCH, "sh", *_launch_arguments(folder, bin_dir, settings)]]
        if made_by is None:
            scripts.insert(0, ["/bin/sh", "-c", _INIT, "sh", str(folder.path), str(bin_dir)])
        for script in scripts:
            # They inherit the lock: should we be killed, the next starter waits until they are done.
            code = folder.run(script, output=log, inherit=[server])
            if code == _NOT_ENTERED:
                raise UsageError(
                    f"{folder.account.name}, who runs the server for root, may not enter {folder.path}",
                    f"choose another folder in QUEUETY_DATA_DIR {ELSEWHERE}",
                )
            if code != 0:
                _explain_death(folder, before)
    finally:
        os.close(log)
    return before


def _launch_arguments(folder: Folder, bin_dir: Path, settings: Mapping[str, str]) -> list[str]:
    names = [name.replace('"', '""') for name in dict.fromkeys(["root", folder.account.name])]
    ident = "".join(f'queuety "{name}" queuety\n' for name in names)
    quoted = str(folder.socket_dir).replace('"', '""')
    merged = _SETTINGS | {"unix_socket_directories": f'"{quoted}"'} | dict(settings)
    options = [word for name, value in merged.items() for word in ("-c", f"{name}={value}")]
    server = [str(bin_dir / "postgres"), "-D", str(folder.data), *options]
    return [str(folder.path), str(folder.socket), ident, *server]


def _explain_death(folder: Folder, since: int) -> None:
    """Raise with the log's own words; return if another try can help."""
    with open(folder.open(folder.log.name), errors="replace") as log:
        log.seek(since)
        lines = [line.strip() for line in log if line.strip()]
    if any("pre-existing shared memory block" in line for line in lines):
        return  # the rest of a server that was started without our lock
    telling = [line for line in lines if re.search("FATAL|PANIC|error", line) and "starting up" not in line]
    said = (telling or lines or ["it said nothing"])[0]
    raise DatabaseUnreachable(f"PostgreSQL did not start: {said}", f"see {folder.log} {ELSEWHERE}")


def _leave(folder: Folder, users: int) -> None:
    try:
        with folder.starting(_STOP_LIMIT_S):
            _stop_if_last(folder, users)
    finally:
        os.close(users)


def _stop_if_last(folder: Folder, users: int) -> None:
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _stop(folder)


def _stop(folder: Folder) -> bool:
    """Fast shutdown; whether it ended in time. Call with start.lock held."""
    answer = ask(folder.socket)
    if answer is None:
        return True
    if answer.pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(answer.pid, signal.SIGINT)
    deadline = time.monotonic() + _STOP_LIMIT_S
    while (gone := folder.try_lock("server.lock")) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    os.close(gone)
    if folder.socket_dir != folder.path:
        with suppress(OSError):
            folder.socket_dir.rmdir()
    return True


def _used(folder: Folder) -> bool:
    if not (folder.path / "users.lock").exists():
        return False
    # Under start.lock: else one who leaves could take our look for a user, and leave the server running.
    starting = folder.try_lock("start.lock")
    if starting is None:
        return True  # somebody is just coming or leaving
    free = folder.try_lock("users.lock")
    if free is not None:
        os.close(free)
    os.close(starting)
    return free is None
