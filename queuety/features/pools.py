"""What the living pools can take: as their keepers tell, for those who look from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from queuety.policy.admission import HERE, NotHere, Place, Rules, admit
from queuety.policy.profile import Profile, Tally
from queuety.store import profiles
from queuety.store.connect import Connection
from queuety.store.standing import Process

DEFAULT_WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a handler's job can run in a pool. now: for what there is at the moment; ever: if nothing else ran."""

    pool: str
    now: bool
    ever: bool
    reason: str


def profile(conn: Connection, handler: str, keepers: Iterable[Process]) -> Profile | None:
    """What a handler has taken, within the longest window of the pools."""
    windows = [keeper.memory.get("window_s", DEFAULT_WINDOW_S) for keeper in keepers if keeper.memory]
    for row in profiles.read(conn, [handler], max(windows, default=DEFAULT_WINDOW_S)):
        return Tally(row.runs, row.seconds, list(row.durations), row.peak, row.passing).profile()
    return None


def serving(processes: Iterable[Process], kind: str, queues: Sequence[str]) -> list[Process]:
    """Living processes of a kind that serve one of these queues."""
    return [one for one in processes if one.alive and one.kind == kind and set(one.queues) & set(queues)]


def verdicts(found: Profile | None, keepers: Iterable[Process]) -> list[Verdict]:
    """What each pool says to a handler that takes so much."""
    return [_verdict(found, keeper) for keeper in keepers if keeper.memory]


def _verdict(found: Profile | None, keeper: Process) -> Verdict:
    told: dict[str, Any] = keeper.memory or {}
    if not told.get("admission", True):
        return Verdict(keeper.name, True, True, "admission is off there")
    base = int(told.get("base") or 0)
    rules = Rules(
        int(told.get("headroom") or 0), int(told.get("system_headroom") or 0), 0.0, bool(told.get("aware"))
    )

    def ask(available: int | None) -> object:
        place = Place(limit=int(told.get("limit") or 0), base=base, size=base, available=available)
        return admit(found, place, rules)

    now, ever = ask(told.get("available")), ask(told.get("most"))
    refusal = ever if isinstance(ever, NotHere) else now
    reason = refusal.reason if isinstance(refusal, NotHere) else "there is room"
    source = told.get("source")
    if isinstance(refusal, NotHere) and refusal.kind == "system" and source:
        reason += f" ({source})"
    return Verdict(keeper.name, now == HERE, ever == HERE, reason)
