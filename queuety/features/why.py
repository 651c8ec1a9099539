"""Why a job does not run now, in honest sentences with figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from queuety.features import pools
from queuety.model import Job, State
from queuety.store import search, standing
from queuety.store.connect import Connection
from queuety.store.standing import MOST, Process, Use, Waiting

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps a job. kind: for programs.  text: for people.  figures: what the text says, as values."""

    kind: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job stands where it stands; the weightiest reason first, never none."""

    id: int
    state: State
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known besides the job. queue_budgets, group_budgets: cost units by name, as the settings here say."""

    processes: list[Process]
    queue_budgets: Mapping[str, int]
    group_budgets: Mapping[str, int]


def explain(
    conn: Connection, job_id: int, queue_budgets: Mapping[str, int], group_budgets: Mapping[str, int]
) -> Explanation:
    """Say why a job does not run now, or that it does, or how it ended. Raises JobNotFound.

    queue_budgets, group_budgets: as the settings here say; what is set in the database wins.
    """
    search.check_id(job_id)
    with conn.transaction():
        conn.execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        )  # one moment for all questions
        job = standing.live(conn, job_id)
        if job is None:
            ended = search.find(conn, job_id)
            return Explanation(job_id, ended.state, (_ended(ended),))
        processes = standing.processes(conn)
        if job.state == State.PROCESSING:
            return Explanation(job_id, State.PROCESSING, (_running(job, processes),))
        return Explanation(
            job_id, State.PENDING, tuple(_pending(conn, job, Known(processes, queue_budgets, group_budgets)))
        )


def _ended(job: Job) -> Reason:
    at = f" at {_moment(job.finished_at)}" if job.finished_at else ""
    text = f"it is {job.state}{at}, after {_times(job.attempts)}"
    if job.error:
        text += f": {job.error.get('type')}: {' '.join(str(job.error.get('message')).split())[:300]}"
    return Reason(str(job.state), text)


def _running(job: Waiting, processes: list[Process]) -> Reason:
    text = f"worker {job.worker} has it since {span(job.claimed_s)}, attempt {job.attempts} of {job.max_attempts}"
    left = job.lease_left_s or 0.0
    figures = {"worker": job.worker, "since_s": job.claimed_s, "lease_left_s": left}
    if left <= 0:
        text += f"; its lease ran out {span(-left)} ago: the next recovery settles it"
        if not any(one.alive and one.kind == "keeper" for one in processes):
            text += ", and no pool is alive to do that: `queuety recover` does"
        return Reason("stranded", text, figures)
    if job.cancel_requested:
        text += "; it was asked to cancel and ends soon"
    return Reason("running", text, figures)


def _pending(conn: Connection, job: Waiting, known: Known) -> list[Reason]:
    reasons: list[Reason] = []
    processes = known.processes
    if job.parked_on:
        reasons.append(_parked(conn, job, job.parked_on, known))
    if job.paused:
        until = f" until {_moment(job.paused_until)}" if job.paused_until else ""
        because = f": {job.pause_reason}" if job.pause_reason else ""
        figures = {"queue": job.queue, "until": job.paused_until, "reason": job.pause_reason}
        reasons.append(Reason("paused", f"its queue {job.queue} is paused{until}{because}", figures))
    if job.due_in_s > 0:
        reasons.append(_later(job))
    serving = pools.serving(processes, "worker", [job.queue])
    if not serving:
        reasons.append(_unserved(job, processes))
    elif not any(job.handler in one.handlers for one in serving) and not (job.parked_on or "").startswith(
        "handler:"
    ):
        text = f"none of the {len(serving)} live workers of its queue has the handler {job.handler}"
        reasons.append(Reason("no_handler", text, {"handler": job.handler, "workers": len(serving)}))
    if not reasons:
        reasons.append(_in_line(conn, job, serving))
    return reasons


def _later(job: Waiting) -> Reason:
    text = f"it is due in {span(job.due_in_s)}, at {_moment(job.available_at)}"
    if job.attempts and job.error:
        text += f", for attempt {job.attempts + 1} of {job.max_attempts} after {job.error.get('type')}"
    return Reason("later", text, {"due_in_s": job.due_in_s, "available_at": job.available_at})


def _unserved(job: Waiting, processes: list[Process]) -> Reason:
    alive = sum(one.alive and one.kind == "worker" for one in processes)
    text = f"no live worker serves its queue {job.queue}"
    text += f"; {alive} serve others" if alive else "; no worker is alive at all"
    return Reason("no_worker", text, {"queue": job.queue, "workers": alive})


def _in_line(conn: Connection, job: Waiting, serving: list[Process]) -> Reason:
    before = standing.ahead(conn, job)
    busy = standing.busy(conn)
    figures = {"ahead": before, "workers": len(serving), "busy": busy}
    if before:
        many = f"{MOST} or more" if before >= MOST else str(before)
        jobs = "job of its queue comes" if before == 1 else "jobs of its queue come"
        text = (
            f"{many} due {jobs} before it; {len(serving)} workers serve the queue, {busy} workers hold jobs"
        )
        return Reason("behind", text, figures)
    text = f"it is next in its queue: {len(serving)} workers serve it, {busy} workers hold jobs"
    return Reason("next", text, figures)


# ── parked ────────────────────────────────────────────────────────────────────────────────────────────


def _parked(conn: Connection, job: Waiting, key: str, known: Known) -> Reason:
    kind, _, name = key.partition(":")
    tell = _KEYS.get(kind)
    if tell is None:
        return Reason("parked", f"it is parked on {key} for {span(job.parked_s)}", {"parked_on": key})
    return tell(conn, job, name, known)


def _on_handler(_: Connection, job: Waiting, name: str, known: Known) -> Reason:
    have = [one for one in pools.serving(known.processes, "worker", [job.queue]) if name in one.handlers]
    figures = {"handler": name, "parked_s": job.parked_s, "workers": len(have)}
    text = f"it is parked for {span(job.parked_s)}: a worker without the handler {name} has had it in hand"
    if have:
        return Reason(
            "handler", f"{text}; {len(have)} live workers have it, one of them takes it soon", figures
        )
    text += "; no live worker of its queue has that, and after QUEUETY_UNKNOWN_HANDLER_GRACE it is buried"
    return Reason("handler", text, figures)


def _on_memory(conn: Connection, job: Waiting, name: str, known: Known) -> Reason:
    keepers = pools.serving(known.processes, "keeper", [job.queue])
    profile = pools.profile(conn, name, keepers)
    text = f"it is parked for {span(job.parked_s)} for want of memory"
    if profile is None or profile.peak is None:
        text += f"; {name} has no profile within the window any more: the next look of a pool lets it in"
        return Reason("memory", text, {"handler": name, "parked_s": job.parked_s})
    verdicts = pools.verdicts(profile, keepers)
    nowhere = bool(verdicts) and not any(one.ever for one in verdicts)
    text += f": {name} takes up to {profile.peak / MB:.0f} MB"
    if nowhere:
        text += ", and fits in no living pool"
    for one in verdicts:
        text += f"; pool {one.pool}: {one.reason}"
    figures = {
        "handler": name,
        "parked_s": job.parked_s,
        "peak": profile.peak,
        "nowhere": nowhere,
        "pools": [
            {"pool": one.pool, "now": one.now, "ever": one.ever, "reason": one.reason} for one in verdicts
        ],
    }
    return Reason("memory", text, figures)


def _on_group(conn: Connection, job: Waiting, name: str, known: Known) -> Reason:
    limits = job.limits or {}
    use = standing.places(conn, name, limits.get("concurrency"))
    figures = {"group": name, "limit": use.limit, "running": use.used}
    text = f"its group {name} has {use.used} runs, and {_most(use)} may run at a time"
    units = standing.units(conn, "group", name, known.group_budgets.get(name))
    if units.limit is not None:
        cost = limits.get("cost") or 1
        text += f"; {units.used} of {units.limit} cost units are in use, it costs {cost}"
        figures |= {"budget": units.limit, "cost_used": units.used, "cost": cost}
    return _waiting(conn, job, "group", text, figures)


def _on_queue(conn: Connection, job: Waiting, name: str, known: Known) -> Reason:
    use = standing.units(conn, "queue", name, known.queue_budgets.get(name))
    cost = (job.limits or {}).get("cost") or 1
    figures = {"queue": name, "budget": use.limit, "cost_used": use.used, "cost": cost}
    text = f"its queue {name} has {use.used} cost units in use of {_most(use)}, it costs {cost}"
    return _waiting(conn, job, "budget", text, figures)


def _on_rate(conn: Connection, job: Waiting, name: str, _: Known) -> Reason:
    limits = job.limits or {}
    use = standing.starts(conn, name, limits.get("rate_count"), limits.get("rate_s"))
    figures = {
        "rate": name,
        "limit": use.limit,
        "window_s": use.window_s,
        "started": use.used,
        "next_s": use.next_s,
    }
    text = f"its rate {name} allows {_most(use)} starts in {use.window_s:g} s, and has had {use.used}"
    if use.next_s is not None and use.limit is not None and use.used >= use.limit:
        text += f"; the next one in {span(use.next_s)}"
    return _waiting(conn, job, "rate", text, figures)


def _on_never(conn: Connection, job: Waiting, rest: str, known: Known) -> Reason:
    kind, _, name = rest.partition(":")
    budgets = known.group_budgets if kind == "group" else known.queue_budgets
    use = standing.units(conn, kind, name, budgets.get(name))
    cost = (job.limits or {}).get("cost") or 1
    figures = {kind: name, "budget": use.limit, "cost": cost}
    text = f"it can never run: it costs {cost}, and the whole budget of its {kind} {name} is {_most(use)}"
    return Reason("never", text, figures)


def _waiting(conn: Connection, job: Waiting, kind: str, text: str, figures: dict[str, Any]) -> Reason:
    """A reason of a key that has a line of its own."""
    before = standing.parked_before(conn, job)
    text += f"; it waits for {span(job.parked_s)}, with {before} of its queue before it"
    return Reason(kind, text, {**figures, "parked_s": job.parked_s, "ahead": before})


def _most(use: Use) -> str:
    if use.limit is None:
        return "as many as the settings of its pools say"
    return f"{use.limit} (set in the database)" if use.set else str(use.limit)


_KEYS: dict[str, Callable[[Connection, Waiting, str, Known], Reason]] = {
    "handler": _on_handler,
    "memory": _on_memory,
    "group": _on_group,
    "queue": _on_queue,
    "rate": _on_rate,
    "never": _on_never,
}


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────


def _moment(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "?"


def _times(count: int) -> str:
    return "one attempt" if count == 1 else f"{count} attempts"


def span(seconds: float | None) -> str:
    """A duration for people."""
    seconds = max(seconds or 0.0, 0.0)
    for limit, unit, size in ((10, "s", 1), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.{1 if limit in (10, 172_800) else 0}f} {unit}"
    return f"{seconds / 86_400:.1f} d"
