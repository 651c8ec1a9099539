"""What the jobs of one lease came to, and the statements that settle it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import assert_never

from queuety.model import Again, Bury, Cancel, Complete, ErrorInfo, GiveBack, Settlement
from queuety.store.connect import Connection
from queuety.store.pipeline import Step
from queuety.store.statements import array, perform, texts

RATE = "rate:"
LONG_S = 1e6


@dataclass(slots=True)
class Batch:
    """What the jobs of one lease came to, gathered until the next turn settles them in one transaction."""

    lease: int
    completed: list[tuple[int, float, float, str | None, str | None]] = field(default_factory=list)
    again: list[tuple[int, Again]] = field(default_factory=list)
    buried: list[tuple[int, ErrorInfo, float, float]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    given_back: list[int] = field(default_factory=list)
    parked: list[tuple[int, str]] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)  # keys that have room once this is settled
    unstarted: list[str] = field(default_factory=list)  # rate keys of jobs given back before they began
    begun_s: float = 0.0  # when the last job with a rate began, by the monotonic clock; 0: none did

    def add(self, job_id: int, settlement: Settlement, began_s: float = 0.0, ended_s: float = 0.0) -> None:
        """Note a settlement. began_s, ended_s: seconds after the claim, for the finished row."""
        match settlement:
            case Complete(result, note):
                self.completed.append((job_id, began_s, ended_s, result, _error(note)))
            case Again():
                self.again.append((job_id, settlement))
            case Bury(error):
                self.buried.append((job_id, error, began_s, ended_s))
            case Cancel():
                self.cancelled.append(job_id)
            case GiveBack():
                self.given_back.append(job_id)
            case _:
                assert_never(settlement)

    def clear(self) -> None:
        """Forget everything: it has been settled."""
        for part in (self.completed, self.again, self.buried, self.cancelled, self.given_back, self.parked):
            part.clear()
        self.unstarted.clear()  # but for what is freed: that is for the next claim
        self.begun_s = 0.0

    def strip(self) -> None:
        """Leave the bare outcomes, without results, errors and notes that the database refuses."""
        lost = ErrorInfo("DetailsLost", "the details could not be stored")
        note = _error(ErrorInfo("ResultNotKept", "the database refused it"))
        self.completed = [(*row[:3], None, note if row[3] else None) for row in self.completed]
        self.again = [(job_id, replace(again, error=lost)) for job_id, again in self.again]
        self.buried = [(row[0], lost, row[2], row[3]) for row in self.buried]

    def __len__(self) -> int:
        return (
            len(self.completed)
            + len(self.again)
            + len(self.buried)
            + len(self.cancelled)
            + len(self.given_back)
            + len(self.parked)
        )


def settle(conn: Connection, batch: Batch) -> int:
    """Settle `batch` inside the caller's transaction; returns how many jobs were really settled."""
    return sum(perform(conn, step.name, **step.values).rowcount for step in settlements(batch))


def settlements(batch: Batch) -> list[Step]:
    """The statements that settle a batch, in the order completed, again, buried, given back, parked, cancelled.

    The last one comes last: it also takes what the others left behind because somebody asked to cancel it
    meanwhile.
    """
    steps: list[Step] = []

    def add(name: str, **values: str) -> None:
        steps.append(Step(name, {"lease": str(batch.lease), **values}))

    if batch.completed:
        ids, began, ended, results, errors = zip(*batch.completed, strict=True)
        add(
            "complete",
            ids=array(ids),
            began=array(began),
            ended=array(ended),
            results=texts(results),
            errors=texts(errors),
        )
    if batch.again:
        add(
            "again",
            ids=array([job_id for job_id, _ in batch.again]),
            delays=array([again.delay_s for _, again in batch.again]),
            counted=array(["t" if again.counted else "f" for _, again in batch.again]),
            errors=texts([_error(again.error) for _, again in batch.again]),
            causes=texts([again.cause for _, again in batch.again]),
        )
    if batch.buried:
        add(
            "bury",
            ids=array([row[0] for row in batch.buried]),
            errors=texts([_error(row[1]) for row in batch.buried]),
            began=array([row[2] for row in batch.buried]),
            ended=array([row[3] for row in batch.buried]),
        )
    if batch.given_back or batch.cancelled:
        # A cancelled one too: if nobody has asked for it under this lease, it is given back rather than stuck.
        add("give_back", ids=array([*batch.given_back, *batch.cancelled]))
    if batch.parked:
        add(
            "park",
            ids=array([job_id for job_id, _ in batch.parked]),
            keys=texts([key for _, key in batch.parked]),
        )
    # Statement after statement: what `again` and `give_back` refused for a cancel request, this one takes.
    asked = [
        *batch.cancelled,
        *(job_id for job_id, _ in batch.again),
        *batch.given_back,
        *(job_id for job_id, _ in batch.parked),
    ]
    if asked:
        add("cancel_run", ids=array(asked))
    return steps


def began(batch: Batch) -> Step:
    return Step(
        "began",
        {
            "lease": str(batch.lease),
            "keys": texts(sorted(key for key in batch.freed if key.startswith(RATE))),
            "none": texts(batch.unstarted),
            # Before the run has ended nobody knows better than the claim did.
            "ago": str(time.monotonic() - batch.begun_s if batch.begun_s else -LONG_S),
        },
    )


def _error(error: ErrorInfo | None) -> str | None:
    return None if error is None else json.dumps(error.as_json(), ensure_ascii=False)
