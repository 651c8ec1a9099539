"""Schedules in the database: make, change and look at them, while everything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from queuety import schedule, units
from queuety.errors import UsageError
from queuety.features import schedules
from queuety.limits import check_whole
from queuety.model import NewSchedule, Schedule, Tick
from queuety.names import quoted
from queuety.store import schedules as stored

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.features.schedules import Planned, Synced
    from queuety.store.connect import Connection

MOST_PREVIEWED = 1000
KINDS = ("run", "skip", "fail")


class Schedules:
    """What `app.schedules` is. Keys are the schedules' names; an unknown one is a ScheduleNotFound."""

    def __init__(self, app: Queuety) -> None:
        self._app = app

    def add(self, handler: str, /, *, replace: bool = False, anyway: bool = False, **given: Any) -> Schedule:
        """Make a schedule of a handler, by name; arguments as for `app.schedule`, which declares it in code instead.

        replace: change the schedule that has the key; its history and its pause stay. Raises ScheduleExists without.
        anyway:  even if neither this application nor any living worker has the handler.
        """
        new = schedule.new_schedule(self._app, handler, given)
        with self._app._borrow() as conn:
            if not anyway:
                self._refuse_unknown(conn, new)
            return schedules.add(conn, new, replace=replace)

    def remove(self, key: str) -> Schedule:
        """Remove a schedule and return what it was; its jobs stay. One that code declares comes back at a start."""
        with self._app._borrow() as conn:
            return schedules.remove(conn, key)

    def pause(self, key: str, *, reason: str = "") -> Schedule:
        """Let a schedule tick no more until it is resumed; jobs that it has made run on."""
        with self._app._borrow() as conn:
            return schedules.pause(conn, key, reason)

    def resume(self, key: str) -> bool:
        """Let a paused schedule go on at its next tick; False if it was not paused."""
        with self._app._borrow() as conn:
            return schedules.resume(conn, key)

    def run(self, key: str) -> int:
        """Write a job of a schedule now, besides its rhythm; returns its id. WrongState if overlap forbids it."""
        with self._app._borrow() as conn:
            return schedules.run(conn, key)

    def find(self, key: str) -> Schedule:
        """The schedule with this key, as it stands."""
        with self._app._borrow() as conn:
            return schedules.find(conn, key)

    def list(
        self, *, handler: str | None = None, limit: int = 100, after: str | None = None
    ) -> Sequence[Schedule]:
        """Schedules by key. handler: only of this one.  after: the last key of the page before."""
        with self._app._borrow() as conn:
            return schedules.listing(conn, handler=handler, limit=limit, after=after)

    def counts(self) -> Mapping[str, int]:
        """How many schedules are in which state."""
        with self._app._borrow() as conn:
            return stored.counts(conn)

    def history(self, key: str, *, kind: str | None = None, limit: int = 100) -> Sequence[Tick]:
        """The ticks of a schedule that ran, were skipped or failed, the latest first. kind: run, skip or fail."""
        if kind is not None and kind not in KINDS:
            raise UsageError(f"kind={units.shown(kind)} is unknown", f"use one of {', '.join(KINDS)}")
        with self._app._borrow() as conn:
            return schedules.history(conn, key, kind=kind, limit=limit)

    def preview(
        self, key: str | None = None, /, *, count: int = 5, after: datetime | None = None, **given: Any
    ) -> Sequence[Planned]:
        """The next ticks, and when their jobs would be due: of a schedule, or of cron= or every= without a database.

        after: an aware time, default now.  Besides: timezone, start, end.
        """
        check_whole("count", count, 1, MOST_PREVIEWED)
        since = None if after is None else units.instant(after, what="after")
        if key is None:
            new = schedule.cadence_only(self._app.settings, _of_times(given))
            return schedules.upcoming(new, since or datetime.now(UTC), count)
        if given:
            raise UsageError(
                f"a schedule's name and {next(iter(given))}= exclude each other", "give one of them"
            )
        with self._app._borrow() as conn:
            found = schedules.find(conn, key)
            return schedules.upcoming(found, since or stored.now(conn), count)

    def sync(self, declared_by: str | None = None) -> Synced:
        """Write what this application's code declares, and retire what it declares no more; pools do so at their start.

        declared_by: names the application; default the setting `app`, as pools do.
        """
        by = declared_by or self._app.settings.app
        if not by:
            raise UsageError(
                "nobody says which application declares these schedules",
                "give QUEUETY_APP=module:attribute, as to its pools, or sync(declared_by=…)",
            )
        news = self._app.declared
        with self._app._borrow() as conn:
            return schedules.sync(conn, news, by)

    def _refuse_unknown(self, conn: Connection, new: NewSchedule) -> None:
        name = new.job.handler
        if name in self._app.handlers:
            return
        from queuety.store import workers

        known = workers.living_handlers(conn)
        if name not in known:
            near = schedule.did_you_mean(name, {*known, *self._app.handlers})
            raise UsageError(
                f"schedule {quoted(new.key)}: no living worker has a handler {quoted(name)}"
                + (", nor has this application" if self._app.handlers else ""),
                near
                or "start a pool that has it, name the application, or add it anyway: anyway=True, --anyway",
            )


def _of_times(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in given:
        if option not in ("cron", "every", "timezone", "start", "end"):
            raise UsageError(
                f"a preview has no option {option!r}",
                schedule.did_you_mean(option, ["cron", "every", "timezone", "start", "end", "count", "after"])
                or "options are cron, every, timezone, start, end, count and after",
            )
    return given
