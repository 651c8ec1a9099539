"""Look before the fork: can the application be imported, and can its database be worked with?

All of it happens in a forked child that ends afterwards: the process that becomes the supervisor must import
neither user code nor database code. Child and parent take turns in JSON lines over a socket:

    child   {"own": {setting: value}}       what the application's code gave to Queuety(…)
    parent  {"url": "…", "embedded": true}  where the queue lives, once all was considered
    child   {"handlers": 3, "free": 97, "zoneless": ["nightly"]}  all is well, and cron schedules without a zone
    child   {"error": [kind, message, hint]}  at either turn: the end
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from queuety import errors, loading
from queuety.errors import ImportFailed, QueuetyError
from queuety.redaction import redact_text
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.embedded import Embedded

log = logging.getLogger("queuety.preflight")

_STOP = {signal.SIGTERM, signal.SIGINT}


@dataclass(frozen=True, slots=True)
class Checked:
    """What a pool may rely on.

    settings:  complete, the application's own included; database_url is never None.
    server:    our share in the embedded server, to be released after the pool; None for another database.
    free:      connections that the server had to spare; None if nobody can tell.
    """

    settings: Settings
    server: Embedded | None
    free: int | None


@contextlib.contextmanager
def checked(settings: Settings, directory: Path, *, schedules: bool = False) -> Iterator[Checked]:
    """Check the application and the database; holds the embedded server, where that is the one, until the end.

    settings.app is given.  schedules: what follows fires schedules too.
    Raises what was found as an error of our own tree.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked: a signal that came between the fork and the child's first line would raise in both.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    pid = os.fork()
    if not pid:
        ours.close()
        _be_child(theirs, settings, directory, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
    theirs.close()
    server: Embedded | None = None
    try:
        with ours, ours.makefile("rw", encoding="utf-8") as wire:
            settings = loading.adopt(settings, _hear(wire)["own"])
            if settings.database_url is None:
                from queuety import embedded  # no database code in there

                server = embedded.start()
                settings = loading.adopt(settings, {"database_url": server.url})
            _tell(wire, {"url": settings.database_url, "embedded": server is not None})
            found = _hear(wire)
        _end(pid)
        pid = 0
        if not found["handlers"]:
            log.warning("the application %s has no handlers: nothing can be run", settings.app)
        if schedules:
            warn_of_zones(found["zoneless"])
        yield Checked(settings, server, found["free"])
    finally:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _end(pid)
        if server is not None:
            server.release()


def warn_of_zones(zoneless: Sequence[str]) -> None:
    """Say which cron schedules are read in UTC for want of a zone."""
    if zoneless:
        log.warning(
            "no time zone is named for the schedule %s: its cron expression is read in UTC; give it timezone=…, or "
            "set QUEUETY_TIMEZONE",
            ", ".join(map(repr, zoneless)),
        )


def warn_of_connections(checked: Checked, workers: int, option: str) -> None:
    """Say so, with the numbers, if the server has fewer connections to spare than the pool needs."""
    needed = workers + 2  # the last one for a worker whose predecessor is still there, after HUP
    if checked.free is not None and checked.free < needed:
        log.warning(
            "%d workers, their keeper and one more while a worker is replaced need %d connections, but the server "
            "has %d to spare: workers without one wait; lower %s or raise max_connections",
            workers,
            needed,
            checked.free,
            option,
        )


# ── the parent's half ─────────────────────────────────────────────────────────────────────────────────────────


def _hear(wire: Any) -> dict[str, Any]:
    text = wire.readline()
    if not text:
        raise ImportFailed(
            "the application ended the process while it was imported", "import it in Python to see why"
        )
    said: dict[str, Any] = json.loads(text)
    if "error" in said:
        kind, message, hint = said["error"]
        raise _error(kind)(message, hint)
    return said


def _error(kind: str) -> Callable[[str, str], QueuetyError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, QueuetyError) else QueuetyError


def _tell(wire: Any, value: dict[str, Any]) -> None:
    wire.write(json.dumps(value) + "\n")
    wire.flush()


def _end(pid: int) -> None:
    """Collect the child, which ends at its last word, whatever threads the application has left running."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


# ── the child's half ──────────────────────────────────────────────────────────────────────────────────────────


def _be_child(theirs: socket.socket, settings: Settings, directory: Path, parent: int) -> NoReturn:
    """Answer the parent and leave, whatever happens."""
    try:
        for number in _STOP:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
        _die_with(parent)
        os.dup2(2, 1)  # what a module prints is said again by each worker
        with theirs.makefile("rw", encoding="utf-8") as wire:
            try:
                _answer(wire, settings, directory)
            except QueuetyError as error:
                log.debug("%s", type(error).__name__, exc_info=True)
                _tell(wire, {"error": [type(error).__name__, error.message, error.hint]})
            except Exception as error:
                log.debug("unexpected", exc_info=True)
                said = redact_text(" ".join(str(error).split()))[:500]
                _tell(wire, {"error": ["QueuetyError", f"unexpected {type(error).__name__}: {said}", ""]})
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def _answer(wire: Any, settings: Settings, directory: Path) -> None:
    if settings.timezone is not None:
        from queuety.schedule import default_zone

        default_zone(settings)  # before the import, in which each schedule without a zone would say so
    app = loading.load(settings.app or "", directory)
    own = loading.own_settings(app)
    loading.bind(app, loading.adopt(settings, own))
    app.declared  # noqa: B018 - a schedule whose handler is missing is refused before anything is connected
    _tell(wire, {"own": own})
    text = wire.readline()
    if not text:  # the parent is gone
        return
    asked = json.loads(text)
    free = check_database(asked["url"], embedded=asked["embedded"])
    _tell(wire, {"handlers": len(app.handlers), "free": free, "zoneless": app.zoneless})


def check_database(url: str, *, embedded: bool) -> int | None:
    """Promise that a database can be worked with; returns how many connections it has to spare, None: nobody knows.

    embedded: it is ours to migrate.
    """
    from queuety.store import capacity, connect, schema

    if embedded:
        from queuety.store import migrations

        migrations.migrate(url)
    with connect.connect(url, name="queuety preflight") as conn:
        schema.check_schema(conn)
        schema.check_writable(conn)
        schema.check_rights(conn)
        return capacity.spare(conn)


def _die_with(parent: int) -> None:
    """Let the kernel end us with our parent, where it can: an import may hang for ever."""
    from queuety.process import host

    host.signal_when_orphaned(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
