"""The private folder: where it is, whose it is, its locks, socket and log."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from queuety.errors import DatabaseUnreachable, UsageError

ELSEWHERE = "or set QUEUETY_DATABASE_URL"
PORT = 5432  # only a part of the socket's name
_SOCKET_LIMIT_BYTES = 103  # the longest path that every kernel takes (Linux 107, macOS 103)
_LOG_LIMIT_BYTES = 16_000_000
_LOG_KEEP_BYTES = 1_000_000


@dataclass(frozen=True)
class Account:
    """The user whom the server runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Folder:
    """One server's folder. `data` in it is PostgreSQL's own."""

    path: Path
    account: Account

    @classmethod
    def at(cls, directory: Path | None) -> Folder:
        """The folder for this directory (None: `data_dir()`); looks at the disk, changes nothing."""
        path = (directory or data_dir()).resolve()
        return cls(path, _account(path))

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def socket_dir(self) -> Path:
        """The folder itself, or a short one in /tmp where its path is too long or has libpq's separator."""
        encoded = os.fsencode(self.path)
        if len(encoded) + len(f"/.s.PGSQL.{PORT}") <= _SOCKET_LIMIT_BYTES and b"," not in encoded:
            return self.path
        # Not TMPDIR: every user of the server must arrive at the same name.
        return Path("/tmp", f"queuety-{self.account.uid}-{hashlib.sha256(encoded).hexdigest()[:16]}")

    @property
    def socket(self) -> Path:
        return self.socket_dir / f".s.PGSQL.{PORT}"

    @property
    def url(self) -> str:
        host = quote(os.fsencode(self.socket_dir), safe="")
        return f"postgresql://queuety@/queuety?host={host}&port={PORT}"

    def major(self) -> int | None:
        """The major version that made the data; None if there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def prepare(self) -> None:
        """Make the folder (and the socket's, if that is another one) ours alone.

        Raises UsageError if it holds something else, DatabaseUnreachable if it belongs to somebody else.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            # start.lock is the first file ever made here. One listing: another starter may be making it.
            if (names := os.listdir(self.path)) and "start.lock" not in names:
                raise UsageError(
                    f"{self.path} is neither empty nor a folder of Queuety",
                    f"choose another one in QUEUETY_DATA_DIR {ELSEWHERE}",
                ) from None
        self._own(self.path)
        if self.socket_dir != self.path:
            try:
                self.socket_dir.mkdir(mode=0o700)
            except FileExistsError:
                self.check_socket_dir()
            self._own(self.socket_dir)

    def check_socket_dir(self) -> None:
        """Raise DatabaseUnreachable if somebody else made the socket's folder: anybody can, in /tmp."""
        if self.socket_dir == self.path:
            return
        try:
            seen = self.socket_dir.lstat()
        except FileNotFoundError:
            return
        ours = {self.account.uid, os.geteuid()}
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in ours or seen.st_mode & 0o077:
            raise DatabaseUnreachable(
                f"{self.socket_dir}, needed for the socket, was made by somebody else",
                f"remove it, choose a shorter QUEUETY_DATA_DIR {ELSEWHERE}",
            )

    def open(self, name: str, flags: int = os.O_RDWR) -> int:
        """Open a file of the folder, made 0600 and the account's if missing. Closes on exec."""
        path = self.path / name
        flags |= os.O_NOFOLLOW
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(path, flags)
        if os.geteuid() == 0:
            os.fchown(fd, self.account.uid, self.account.gid)
        return fd

    def try_lock(self, name: str, kind: int = fcntl.LOCK_EX) -> int | None:
        """Lock a file of the folder if it is free; closing the descriptor unlocks it."""
        fd = self.open(name)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    @contextmanager
    def starting(self, limit_s: float) -> Iterator[None]:
        """Hold start.lock. Raises DatabaseUnreachable if others hold it for longer than `limit_s`."""
        deadline = time.monotonic() + limit_s
        while (lock := self.try_lock("start.lock")) is None:
            if time.monotonic() > deadline:
                raise DatabaseUnreachable(
                    f"another process has been starting or stopping {self.path} for {limit_s:g} s",
                    f"see {self.log} {ELSEWHERE}",
                )
            time.sleep(0.005)
        try:
            yield
        finally:
            os.close(lock)

    def open_log(self) -> int:
        """The log for appending, cut to its last megabyte when it has grown too large."""
        fd = self.open(self.log.name, os.O_RDWR | os.O_APPEND)
        if (size := os.fstat(fd).st_size) > _LOG_LIMIT_BYTES:
            kept = os.pread(fd, _LOG_KEEP_BYTES, size - _LOG_KEEP_BYTES)
            os.ftruncate(fd, 0)  # a running server appends too, so it goes on behind what is kept
            os.write(fd, kept)
        return fd

    def run(self, argv: Sequence[str], *, output: int, inherit: Sequence[int] = ()) -> int:
        """Run a program as the account, in a session of its own; returns its exit code.

        output: a descriptor of a file, never of a pipe: the server inherits it and would keep it open.
        """
        root = os.geteuid() == 0
        keep = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        return subprocess.run(
            argv,
            cwd="/",  # ours may be closed to the account
            # No PG* and no secrets of ours; and C, since a locale named in LANG need not be installed.
            env={"PATH": os.defpath} | {k: os.environ[k] for k in keep if k in os.environ} | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=inherit,
            start_new_session=True,  # Ctrl+C is for the workers, who still need the server to drain
            umask=0o077,
            user=self.account.uid if root else None,
            group=self.account.gid if root else None,
            extra_groups=[] if root else None,
            check=False,
        ).returncode

    def _own(self, path: Path) -> None:
        seen = path.lstat()
        if seen.st_uid != self.account.uid:
            if os.geteuid() != 0:
                raise DatabaseUnreachable(
                    f"{path} belongs to another user", f"choose another one in QUEUETY_DATA_DIR {ELSEWHERE}"
                )
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)
        if seen.st_mode & 0o077:
            path.chmod(0o700)


def data_dir() -> Path:
    """QUEUETY_DATA_DIR, else /var/lib/queuety for root, else queuety in the user's XDG data folder."""
    if chosen := os.environ.get("QUEUETY_DATA_DIR"):
        return Path(os.path.expanduser(chosen)).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/queuety")  # the account that runs the server for root cannot enter /root
    share = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(share):  # the XDG specification says to ignore a relative one
        share = os.path.expanduser("~/.local/share")
    if not os.path.isabs(share):
        raise _nameless(os.geteuid())
    return Path(share, "queuety")


@contextmanager
def plainly(folder: Folder) -> Iterator[None]:
    """Turn an OSError into one line that says where, why and what else can be done."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder.path
        raise DatabaseUnreachable(
            f"the embedded PostgreSQL cannot use {where}: {error.strerror or error}",
            f"choose another folder in QUEUETY_DATA_DIR {ELSEWHERE}",
        ) from error


def _account(path: Path) -> Account:
    uid = os.geteuid()
    if uid != 0:
        return _named(uid)
    for made in (path / "data", path):
        try:
            owner = made.stat().st_uid
        except (FileNotFoundError, NotADirectoryError):
            continue
        if owner != 0:
            return _named(owner)
    for name in ("queuety", "postgres", "nobody"):  # PostgreSQL refuses to run as root
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise UsageError("PostgreSQL does not run as root", f"add a user named queuety {ELSEWHERE}")


def _named(uid: int) -> Account:
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        raise _nameless(uid) from None
    return Account(found.pw_name, uid, found.pw_gid)


def _nameless(uid: int) -> UsageError:
    return UsageError(
        f"PostgreSQL does not run as user id {uid}, which has no entry in /etc/passwd", f"add one {ELSEWHERE}"
    )
