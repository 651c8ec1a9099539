"""Recover: settle the runs of workers that are gone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from queuety.model import Again, Bury, Cancel, ErrorInfo, GiveBack, Lost, Outcome, Settlement
from queuety.policy.retry import Backoff
from queuety.policy.verdict import decide
from queuety.store import claims
from queuety.store.batch import Batch, settle
from queuety.store.claims import Facts
from queuety.store.connect import Connection

Told = Callable[[Facts, Settlement], None]

BATCH = 100  # jobs recovered in one transaction: a fraction of a second, however many leases they are of


@dataclass(slots=True)
class Recovered:
    """How many jobs a recovery retried, buried, cancelled and gave back."""

    retried: int = 0
    buried: int = 0
    cancelled: int = 0
    given_back: int = 0

    @property
    def total(self) -> int:
        return self.retried + self.buried + self.cancelled + self.given_back

    def count(self, settlement: Settlement) -> None:
        match settlement:
            case Again():
                self.retried += 1
            case Bury():
                self.buried += 1
            case Cancel():
                self.cancelled += 1
            case GiveBack():
                self.given_back += 1
            case _:
                pass


def recover(
    conn: Connection, backoff: Backoff, told: Told | None = None, *, rounds: float = math.inf
) -> Recovered:
    """Settle every job whose lease has run out, in bounded transactions until none is left.

    Any number of recoveries may run at once, from any host: a row is locked by one and skipped by the others.
    told: hears of each job, after its transaction has committed.  rounds: transactions of up to BATCH jobs at most.
    """
    done = Recovered()
    while True:
        with conn.transaction():
            facts = claims.expired(conn, BATCH)
            settled = _settle(conn, facts, lambda fact: Lost(_silent(fact)), backoff)
        for fact, settlement in settled:
            done.count(settlement)
            if told:
                told(fact, settlement)
        rounds -= 1
        if len(facts) < BATCH or rounds <= 0:
            return done


def settle_dead(
    conn: Connection, lease: int, outcomes: Mapping[int, tuple[Outcome, float, float]], backoff: Backoff
) -> list[tuple[Facts, Settlement]]:
    """Settle what a dead worker held under `lease`, in one transaction.

    outcomes: job id → outcome, seconds after the claim when it began and ended, as its ledger page tells.
    Jobs that were settled before it died, or given to somebody else, are left alone.
    """
    if not outcomes:
        return []
    with conn.transaction():
        facts = claims.held(conn, lease, list(outcomes))
        return _settle(
            conn, facts, lambda fact: outcomes[fact.id][0], backoff, lambda fact: outcomes[fact.id][1:]
        )


def _settle(
    conn: Connection,
    facts: list[Facts],
    outcome: Callable[[Facts], Outcome],
    backoff: Backoff,
    times: Callable[[Facts], tuple[float, float]] = lambda _: (0.0, 0.0),
) -> list[tuple[Facts, Settlement]]:
    batches: dict[int, Batch] = {}
    settled = []
    for fact in facts:
        settlement = decide(
            outcome(fact),
            attempts=fact.attempts,
            max_attempts=fact.max_attempts,
            cancel_requested=fact.cancel_requested,
            backoff=Backoff.from_json(fact.backoff, backoff) if fact.backoff else backoff,
            spread=random.random(),
        )
        batches.setdefault(fact.lease, Batch(fact.lease)).add(fact.id, settlement, *times(fact))
        settled.append((fact, settlement))
    for batch in batches.values():
        settle(conn, batch)
    return settled


def _silent(fact: Facts) -> ErrorInfo:
    return ErrorInfo(
        "WorkerLost", f"worker {fact.worker or '?'} showed no sign of life for longer than its lease"
    )
