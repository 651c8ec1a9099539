"""Make the days' partitions ahead of time, and let go of what is older than its retention."""

from __future__ import annotations

from dataclasses import dataclass

from queuety.errors import UsageError
from queuety.limits import LONGEST_WINDOW_S
from queuety.store.connect import Connection
from queuety.store.statements import statement

# One host at a time over the whole fleet: the others have nothing to do, and would only queue for locks.
_LOCK = "SELECT pg_try_advisory_xact_lock(7305802403)"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one `prune` let go of.

    partitions: whole days dropped.  buried: buried jobs deleted.
    more: the limit was reached; call again.
    """

    partitions: int = 0
    buried: int = 0
    more: bool = False


def make_ahead(conn: Connection, days: int = 7) -> int:
    """Make the missing partitions of today and the next `days` (0 to 366); return how many.

    Returns 0 too while another host is at it, or while a reader holds the table: the default partition takes
    the rows until the next call, which moves them.
    """
    _check("days", days, 366)
    with conn.transaction():
        if not _alone(conn):
            return 0
        return _number(conn, "make_partitions", {"days": days})


def prune(
    conn: Connection, finished_days: int, buried_days: int, event_days: int, limit: int = 1000
) -> Pruned:
    """Let go of jobs that ended, and of events, that are older than so many days; 0 = keep.

    Finished jobs and events go by whole UTC days; buried jobs one by one, at most `limit` a call.
    Does nothing while another host is at it. Two short transactions if `conn` is in none.
    """
    for name, days in (("finished", finished_days), ("buried", buried_days), ("event", event_days)):
        _check(f"{name} days", days, 36525)
    buried = 0
    if buried_days:
        with conn.transaction():
            if not _alone(conn):
                return Pruned()
            buried = _number(conn, "prune_buried", {"days": buried_days, "limit": limit})
    partitions = 0
    # A transaction of its own: a drop locks out every settlement until the commit.
    with conn.transaction():
        if _alone(conn):
            partitions = _number(
                conn, "drop_partitions", {"finished_days": finished_days, "event_days": event_days}
            )
    return Pruned(partitions, buried, more=buried == limit)


def prune_keys(conn: Connection, after: str = "", size: int = 5000) -> tuple[int, str]:
    """Forget up to `size` unique keys that no job holds any more, in their order from behind `after`.

    Returns how many, and the key to go on behind; "" at the end. Locked keys are skipped, so it never waits.
    """
    with conn.transaction():
        keys = [row[0] for row in conn.execute(statement("free_keys"), {"after": after, "size": size})]
        if not keys:
            return 0, ""
        # Look again after locking: one statement sees one snapshot, and the key may have been taken since.
        pruned = conn.execute(statement("prune_keys"), {"keys": keys}).rowcount
    return pruned, keys[-1] if len(keys) == size else ""


def _alone(conn: Connection) -> bool:
    row = conn.execute(_LOCK).fetchone()
    return row is not None and bool(row[0])


def _number(conn: Connection, name: str, values: dict[str, int]) -> int:
    row = conn.execute(statement(name), values).fetchone()
    return int(row[0]) if row else 0


def _check(name: str, days: int, most: int) -> None:
    if not 0 <= days <= most:
        raise UsageError(f"{name} must be 0 to {most}, not {days}")


def prune_starts(conn: Connection) -> int:
    """Forget starts whose window is over, of rates that nobody has asked for since; return how many."""
    return int(conn.execute(statement("prune_starts"), {"longest": LONGEST_WINDOW_S}).rowcount)
