"""The jobs that one claim brought, in a worker's hands until the next turn settles them."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from typing import TYPE_CHECKING, Any

from queuety import tracing
from queuety.context import Context
from queuety.model import (
    Bury,
    Cancel,
    Cancelled,
    Complete,
    ErrorInfo,
    GiveBack,
    Outcome,
    Raised,
    Returned,
    Settlement,
    TimedOut,
)
from queuety.policy.admission import Kind, NotHere
from queuety.policy.retry import Backoff
from queuety.policy.verdict import decide
from queuety.process import host
from queuety.process.ledger import Counter, Cut, Mark, Phase
from queuety.process.link import RunLink
from queuety.process.report import count, counter_of, tell
from queuety.store import claims, connect
from queuety.store.batch import Batch
from queuety.store.claims import Claimed

if TYPE_CHECKING:
    from queuety.handler import Handler
    from queuety.process.worker import Worker

log = logging.getLogger("queuety.worker")

QUICK_S = 0.02  # a handler that takes longer on average never has company
SLACK_S = 0.01  # a handler may begin so long after it was called, on a busy machine
LAST_SPANS_S = 0.5  # how long spans may take to be sent before the process ends
COMPANY_S = 0.1  # company stuck for so long behind a job is settled and given back


class Holding:
    """Runs what was claimed, in order, and gathers what is to be settled in `batch`."""

    def __init__(self, worker: Worker, jobs: list[Claimed]) -> None:
        self._worker = worker
        self._jobs = jobs
        self.page = worker.page
        self.batch = Batch(jobs[0].lease)
        self.batch.freed = {key for job in jobs if job.limits or job.metered for key in job.keys}
        self.done = 0
        self.queues: list[str] = []  # of the jobs that were run
        self.late = 0  # jobs with a rate that could not begin soon enough
        self._started = 0.0  # the latest moment at which the last job with a rate began

    def run(self) -> float:
        """Run the jobs; returns the seconds spent. What is not begun is in the batch to be given back."""
        page, jobs, worker = self.page, self._jobs, self._worker
        page.phase = Phase.RUNNING
        if worker.profiler is not None:
            worker.profiler.begin()
        started = now = time.monotonic()
        for slot, job in enumerate(jobs):
            if worker.leaving or now - started > COMPANY_S or page.revoked == page.lease:
                self._give_back(slot)
                break
            if page.marks[slot] != Mark.HELD:
                break  # the alarm has given it back already
            handler = worker.registry.get(job.handler)
            if handler is None or page.cancel == job.id:
                self._pass_over(slot, job, cancelled=handler is not None)
                continue
            if worker.room is not None:
                declined = worker.room.declines(job.handler, fresh=worker.untouched and not self.done)
                if declined is not None:
                    self._decline(slot, job, declined)
                    continue
            alone = len(jobs) > 1 and worker.pace.get(job.handler, math.inf) > QUICK_S
            if alone:  # it may take long: nobody waits behind it, or for its end
                self.part(slot)
            rated = job.limits is not None and bool(job.rates)
            if rated and time.monotonic() - page.looked > worker.guard_s:  # later than its claim has promised
                self.late += 1
                self._give_back(slot, slot + 1)
                self._leave_room()
                continue
            begun = self._run_one(slot, job, handler)
            self._leave_room()
            if not begun:
                self._give_back(slot)
                break
            self.done += 1
            self.queues.append(job.queue)
            now = time.monotonic()
            if rated:
                self._started = min(now, page.began + SLACK_S)
            if alone:
                break
        worker.alarm.off()
        self.batch.begun_s = self._started  # only now: while one runs, it may have begun later
        return now - started

    def part(self, slot: int) -> None:
        """Settle and give back at once all but the job in `slot`.

        Also called by the alarm, in the middle of a handler: whatever fails is left to the next turn.
        """
        worker, batch = self._worker, self.batch
        self._give_back(slot + 1)
        if not len(batch) or worker.in_store:
            return
        worker.in_store = True
        try:
            claims.turn(worker.connection(), batch, None)
        except connect.TROUBLE as error:
            log.warning("cannot settle early: %s", connect.unreachable(error).message)
            return
        finally:
            worker.in_store = False
        for place in range(self.page.count):
            if place != slot:
                self.page.marks[place] = Mark.SETTLED
        self.page.settled = time.monotonic()
        batch.clear()

    def _give_back(self, slot: int, end: int | None = None) -> None:
        """Let the next settlement give back what is held from `slot` on."""
        for place in range(slot, len(self._jobs) if end is None else end):
            if self.page.marks[place] == Mark.HELD:
                self.page.marks[place] = Mark.DROPPED
                job = self._jobs[place]
                self._book(job, GiveBack())
                self._unstart(job)

    def _unstart(self, job: Claimed) -> None:
        """Take back what its claim counted as a start under a rate."""
        if job.limits:
            self.batch.unstarted += job.rates

    def _leave_room(self) -> None:
        """Take back what was reserved for the job; the keeper looks whether others wait for it."""
        room = self._worker.room
        if room is not None and room.taken and room.leave():
            self._worker.poke()

    def _run_one(self, slot: int, job: Claimed, handler: Handler[..., Any]) -> bool:
        """Run one job to its outcome and book it; False if the keeper had taken it back."""
        page, worker = self.page, self._worker
        limit = handler.options.timeout_s
        limit = worker.settings.max_execution_time if limit is None else limit
        now = time.monotonic()
        if not page.begin(slot, now, now + limit if limit else 0.0):
            return False
        if page.count == 1:
            page.text = job.handler
            worker.show(f"runs {job.handler} {job.id}")
            worker.alarm.at(now + limit if limit else math.inf)
        else:
            worker.alarm.at(min(now + limit if limit else math.inf, now + COMPANY_S))
        link = context = None
        if handler.codec.context_parameter is not None:
            link = RunLink(worker, job)
            context = Context(link.job, link)
        kept = handler.options.result_limit
        kept = worker.settings.result_limit if kept is None else kept
        worker.running(job)
        traced = tracing.begin(job)
        outcome = worker.runner.run(handler, job, context, kept)
        if traced is not None:
            _trace(traced, outcome)
        worker.running(None)
        if worker.forked:
            log.error("a process that job %d had forked came back from its handler: ended", job.id)
            os._exit(1)
        ended = time.monotonic()
        worker.learn(job.handler, ended - now)
        if link is not None and context is not None:
            context.flush()
            if link.settled:
                link.after(outcome)
                page.end(slot, Mark.SETTLED)
                page.count_one(Counter.COMPLETED)
                if page.figures is not None:
                    page.figures.completed(job.queue, job.handler, ended - now)
                return True
        if type(outcome) is Returned and outcome.result is None and outcome.note is None:
            page.end(slot, Mark.RETURNED)
            page.count_one(Counter.COMPLETED)
            if page.figures is not None:
                page.figures.completed(job.queue, job.handler, ended - now)
            self.batch.completed.append((job.id, now - page.claimed, ended - page.claimed, None, None))
        else:
            self._conclude(slot, job, handler, outcome)
        return True

    def _conclude(self, slot: int, job: Claimed, handler: Handler[..., Any], outcome: Outcome) -> None:
        """Book an outcome that is not a plain success."""
        worker, page = self._worker, self.page
        if isinstance(outcome, Raised) and outcome.retryable and 0 < page.deadline < time.monotonic():
            outcome = TimedOut(outcome.error)  # it has wrapped the time limit into an error of its own
        if (
            isinstance(outcome, Cancelled) and page.cancel != job.id
        ):  # or its job would never leave `processing`
            outcome = Raised(
                ErrorInfo("JobCancelled", "the handler raised it, but nobody had asked to cancel")
            )
        if isinstance(outcome, TimedOut) and not worker.lone:
            self._die_of_time_limit(slot, outcome)
        own = handler.options.backoff or worker.backoff
        settlement = decide(
            outcome,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            cancel_requested=page.cancel == job.id,
            backoff=Backoff.from_json(job.backoff, own) if job.backoff else own,
            spread=random.random(),
        )
        page.end(slot, Mark.RETURNED_VALUE if isinstance(settlement, Complete) else Mark.ENDED)
        count(page.figures, job.queue, job.handler, outcome, settlement, time.monotonic() - page.began)
        self._book(job, settlement, page.began - page.claimed, time.monotonic() - page.claimed)

    def _pass_over(self, slot: int, job: Claimed, *, cancelled: bool) -> None:
        """Deal with a job that is not run: cancelled while it was held, or its handler is not ours.

        The latter is left to others for a while, parked, so that it costs nobody's claim anything.
        """
        self.page.marks[slot] = Mark.DROPPED
        self._unstart(job)
        grace = self._worker.settings.unknown_handler_grace
        if cancelled:
            self._book(job, Cancel())
        elif grace and (job.parked_s is None or job.parked_s < grace):
            self.batch.parked.append((job.id, f"handler:{job.handler}"))
            self.page.count_one(Counter.PARKED)
            log.warning("job %d is left to others: no handler %r in this application", job.id, job.handler)
        else:
            text = f"no application here has a handler {job.handler!r}"
            self._book(job, Bury(ErrorInfo("UnknownHandler", text)))
            self.done += 1

    def _decline(self, slot: int, job: Claimed, why: NotHere) -> None:
        """Leave a job for which there is no room here: free, and so that nobody is held up by it.

        One that a worker in place of this one can take is given back, and this one leaves. One that the end of the
        run leaves no time for is given back and not claimed again. Any other is parked until a keeper sees room.
        """
        worker, page = self._worker, self.page
        page.marks[slot] = Mark.DROPPED
        self._unstart(job)
        if why.kind is Kind.SYSTEM or (why.kind is Kind.WORKER and not why.fresh):
            self.batch.parked.append((job.id, f"memory:{job.handler}"))
            page.count_one(Counter.PARKED)
            log.info("job %d %s is parked: %s", job.id, job.handler, why.reason)
            return
        self._book(job, GiveBack())
        if why.kind is Kind.TIME:
            worker.skip.add(job.handler)
            log.info("job %d %s is left: %s", job.id, job.handler, why.reason)
        else:
            worker.leaving = f"replaced before a job of {job.handler}: {why.reason}"

    def _book(self, job: Claimed, settlement: Settlement, began_s: float = 0.0, ended_s: float = 0.0) -> None:
        self.batch.add(job.id, settlement, began_s, ended_s)
        self.page.count_one(counter_of(settlement))
        if not isinstance(settlement, GiveBack):
            tell(log, job.id, job.handler, job.queue, job.attempts, job.max_attempts, settlement)

    def _die_of_time_limit(self, slot: int, outcome: TimedOut) -> None:
        """End this process and all it started: a job over its limit is really dead before it may run again.

        The keeper settles the job; the rest is settled here.
        """
        self._worker.alarm.off()
        tracing.flush(LAST_SPANS_S)
        self.page.text = outcome.error.traceback or outcome.error.message
        self.part(slot)
        self.page.cut = Cut.TIME_LIMIT
        host.end_own_group()


def _trace(traced: tracing.Run, outcome: Outcome) -> None:
    """End a run's span with what came of it."""
    error = getattr(outcome, "error", None)
    word = (
        type(outcome).__name__.lower().replace("timedout", "timed_out").replace("retryasked", "retry_asked")
    )
    traced.end(word, error.type if error else None, error.message if error else "")
