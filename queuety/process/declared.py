"""The schedules that an application declares, written when a pool or a scheduler starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from queuety.store import schedules
from queuety.store.connect import Connection

if TYPE_CHECKING:
    from queuety.model import NewSchedule

log = logging.getLogger("queuety.schedules")

_SHOWN = 20  # keys in one line


def digest(declared: Sequence[NewSchedule]) -> int:
    """A number for what is declared, 1 to 2^63 - 1: the same in all processes that declare the same."""
    found = blake2b(digest_size=8)
    for one in sorted(declared, key=lambda one: one.key):
        job = one.job.handler, one.job.payload, one.job.settings_json()
        times = one.cron, one.every_s, one.timezone, str(one.starts_at), str(one.ends_at)
        manners = one.jitter_s, one.overlap.value, one.missed.value, one.missed_limit
        found.update(repr((one.key, job, times, manners)).encode())
    return int.from_bytes(found.digest(), "big") >> 1 or 1


def write(conn: Connection, declared: Sequence[NewSchedule], declared_by: str) -> None:
    """Make the stored schedules of an application those that it declares, and log what that has changed.

    Where nothing is declared and nothing was, it is one look.
    """
    if not declared and not schedules.declares(conn, declared_by):
        return
    from queuety.features.schedules import sync  # here: an application without schedules needs no cron

    done = sync(conn, declared, declared_by)
    changed = [key for key in done.changed if key not in done.taken]
    for what, keys in (("added", done.added), ("changed", changed), ("retired", done.retired)):
        if keys:
            log.info("schedules of %s %s: %s", declared_by, what, _listed(keys))
    if done.taken:
        log.warning(
            "schedules that another application declared are %s's now: %s", declared_by, _listed(done.taken)
        )


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
