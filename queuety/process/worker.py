"""The worker: claims jobs, runs them, settles them. One process, one connection, one loop."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from queuety.context import Context
from queuety.errors import JobCancelled, LeaseLost, TimeLimitExceeded
from queuety.model import (
    Bury,
    Cancel,
    Complete,
    ErrorInfo,
    GiveBack,
    Outcome,
    Returned,
    TimedOut,
)
from queuety.policy.prefetch import next_size
from queuety.policy.retry import Backoff
from queuety.policy.verdict import decide
from queuety.process.host import own_memory
from queuety.process.ledger import SLOTS, Counter, Cut, Mark, Page, Phase
from queuety.process.link import RunLink
from queuety.process.plan import Mode, Plan
from queuety.process.report import counter_of, tell
from queuety.process.runner import Runner
from queuety.process.titles import title
from queuety.process.wake import Waker
from queuety.store import claims, connect, events, workers
from queuety.store.claims import Batch, Claimed, Lanes, Want

if TYPE_CHECKING:
    from queuety.handler import Handler
    from queuety.process.plan import Registry

log = logging.getLogger("queuety.worker")

QUICK_S = 0.02  # a handler that takes longer on average never has company in a batch
COMPANY_S = 0.1  # company stuck for so long behind a job is settled and given back
REWIND_S = 0.25  # a claim starts from the front of its lanes at least so often
HOT_PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)  # polls after work, before going to sleep
OWN_LOOK_S = 10  # a sleeper looks by itself after so many poll intervals, should the keeper be gone
MEMORY_CHECK_S = 0.2
POKE_S = 0.02


class Worker:
    """One worker of a pool, or the caller's own process (`lone`) for `app.worker().flush()`."""

    def __init__(
        self, plan: Plan, registry: Registry, page: Page, *, lone: bool = False, poke_fd: int = -1
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.registry = registry
        self.page = page
        self.lone = lone
        self.name = plan.name
        self.leaving = ""  # why, once it is to leave
        self._poke_fd = poke_fd
        self._parent = os.getppid()
        self._lanes = Lanes(plan.queues)
        self._runner = Runner()
        self._backoff = Backoff(kind=self.settings.retry_backoff)
        self._pace: dict[str, float] = {}  # seconds a handler takes, a moving mean
        self._size = 1
        self._done = 0
        self._pause = 0
        self._rewound = self._born = time.monotonic()
        self._memory_checked = 0.0
        self._poked = 0.0
        self._size_asked = 1
        self._armed = math.inf
        self._batch: Batch | None = None
        self._jobs: list[Claimed] = []
        self._in_store = False
        self._conn: connect.Connection | None = None
        self._own: connect.Connection | None = None  # for ctx.transaction()
        self._alarms = threading.current_thread() is threading.main_thread()
        self._waker: Waker | None = None

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Connect, register and become able to claim. Raises what kept it from that."""
        if not self.lone:
            self._waker = Waker([signal.SIGUSR1, signal.SIGCHLD])
        self._install()
        self._conn = connect.connect(self.plan.url, name=f"queuety worker {self.plan.name}")
        self.page.worker = worker_id = workers.register(
            self._conn, "worker", self.plan.name, self.plan.queues, sorted(self.registry), self._parent
        )
        self.name = f"{self.plan.name}#{worker_id}"
        base = own_memory()
        self._memory_limit = self.settings.worker_max_memory
        if self._memory_limit and base > self._memory_limit:
            self._memory_limit += base
            log.warning(
                "the application alone takes %d MB; a worker is replaced at %d MB",
                base >> 20,
                self._memory_limit >> 20,
            )
        self.page.ready = time.monotonic()
        self._show("idle")

    def loop(self) -> None:
        """Settle, claim, run, until there is a reason to leave."""
        while True:
            leaving = self._must_leave()
            from_front = self._rewind()
            jobs = self._turn(None if leaving else self._want())
            if leaving:
                return
            if jobs:
                self._pause = 0
                self.page.empty = 0.0
                if len(jobs) == self._size_asked and self.page.looked - self._poked > POKE_S:
                    self._poked = self.page.looked
                    self._poke()  # there may be more than one worker's work: let the keeper wake others
                self._run_all(jobs)
            if len(jobs) < self._size_asked and not from_front:
                self._lanes.rewind()  # came back short: what is behind the cursors comes next
            elif not jobs and not self._idle():
                return

    def stop(self) -> None:
        """Leave things as they should be found."""
        self.page.phase = Phase.LEAVING
        self._runner.close()
        if self._conn is not None:
            with suppress(psycopg.Error):
                if self.lone:
                    workers.unregister(self._conn, [self.page.worker])
                self._conn.close()
        if self._own is not None:
            with suppress(psycopg.Error):
                self._own.close()
        if self._waker is not None:
            self._waker.close()

    def _must_leave(self) -> str:
        if self.leaving:
            return self.leaving
        plan, settings = self.plan, self.settings
        if not self.lone and os.getppid() != self._parent:
            self.leaving = "the supervisor is gone"
        elif plan.mode is Mode.ONCE and self._done:
            self.leaving = "one job done"
        elif plan.max_jobs and self._done >= plan.max_jobs:
            self.leaving = f"{self._done} jobs done"
        elif self.lone:
            return ""
        elif (
            settings.worker_max_jobs
            and self._done >= settings.worker_max_jobs
            and time.monotonic() - self._born >= settings.worker_min_age
        ):
            self.leaving = f"replaced after {self._done} jobs"
        elif (now := time.monotonic()) - self._memory_checked > MEMORY_CHECK_S and self._memory_limit:
            self._memory_checked = now
            if (memory := own_memory()) > self._memory_limit:
                self.leaving = f"replaced at {memory >> 20} MB"
        return self.leaving

    # ── claim and settle ──────────────────────────────────────────────────────────────────────────────────────

    def _want(self) -> Want:
        size = min(self._size, SLOTS)
        if self.plan.mode is Mode.ONCE:
            size = 1
        elif self.plan.max_jobs:
            size = min(size, self.plan.max_jobs - self._done)
        elif not self.lone and self.settings.worker_max_jobs:
            size = min(size, max(1, self.settings.worker_max_jobs))
        self._size_asked = size
        return Want(self._lanes, size, self.name, self.settings.stale_timeout)

    def _rewind(self) -> bool:
        """Start from the front of the lanes now and then; True if the next claim does."""
        now = time.monotonic()
        if now - self._rewound >= REWIND_S:
            self._lanes.rewind()
        if self._lanes.at_front:
            self._rewound = now
        return self._lanes.at_front

    def _turn(self, want: Want | None) -> list[Claimed]:
        """Settle what is done and claim, through whatever the database does meanwhile."""
        page, batch = self.page, self._batch
        if batch is None and want is None:
            return []
        failures = 0
        while True:
            page.phase = Phase.LOOKING
            page.looked = time.monotonic()
            page.claiming = 1 if want else 0
            try:
                settled, jobs = claims.turn(self._connection(), batch, want)
                break
            except (psycopg.Error, connect.DatabaseUnreachable) as error:
                failures += 1
                if connect.again(error) and failures < 20:
                    time.sleep(random.random() * 0.01 * failures)
                elif connect.lost(error):
                    self._reconnect(error)
                    if batch is None and self.leaving:
                        return []  # nothing in hand: leaving does not wait for the database
                elif (
                    isinstance(error, psycopg.DataError | psycopg.errors.UntranslatableCharacter)
                    and batch
                    and failures < 3
                ):
                    log.error(
                        "details cannot be stored, the bare outcomes are: %s", connect.redact(str(error))
                    )
                    batch.strip()
                else:
                    raise connect.translate(error) if isinstance(error, psycopg.Error) else error from error
        if batch is not None:
            page.settled = time.monotonic()
            page.count = 0
            if settled < len(batch):
                log.warning(
                    "%d jobs had been given to others: their outcomes are dropped", len(batch) - settled
                )
            self._batch = None
        if jobs:
            page.hold(jobs[0].lease, [job.id for job in jobs])
            page.claimed = time.monotonic()
        page.claiming = 0
        return jobs

    def _connection(self) -> connect.Connection:
        if self._conn is None or self._conn.closed:
            self._conn = connect.connect(self.plan.url, name=f"queuety worker {self.name}")
            lease = self._batch.lease if self._batch else self.page.lease
            # An answer to a claim may have been lost with the old connection: give back what it brought.
            lost = claims.strays(self._conn, self.name, [lease])
            if lost:
                log.warning("gave back %d jobs whose claim was never answered", len(lost))
        return self._conn

    def _reconnect(self, error: BaseException) -> None:
        """Drop the connection and wait until another can be had."""
        log.warning("lost the database: %s", connect.unreachable(error).message)
        pause = 0.1
        while True:
            if self._conn is not None:
                with suppress(psycopg.Error):
                    self._conn.close()
            self._conn = None
            try:
                self._connection()
            except (psycopg.Error, connect.DatabaseUnreachable):
                if self._batch is None and self._must_leave():
                    return
                self._sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, 5.0)
            else:
                log.info("the database is back")
                return

    # ── run ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_all(self, jobs: list[Claimed]) -> None:
        """Run a claim's jobs in order; what is not begun is given back with the next settlement."""
        page = self.page
        page.phase = Phase.RUNNING
        batch = self._batch = Batch(jobs[0].lease)
        self._jobs = jobs
        started = now = time.monotonic()
        ran = 0
        for slot, job in enumerate(jobs):
            if self.leaving or now - started > COMPANY_S or page.revoked == page.lease:
                self._give_back(slot)
                break
            if page.cancel == job.id:
                page.marks[slot] = Mark.DROPPED
                batch.add(job.id, Cancel())
                page.count_one(Counter.CANCELLED)
                continue
            handler = self.registry.get(job.handler)
            if handler is None:
                self._miss(slot, job, batch)
                continue
            alone = len(jobs) > 1 and self._pace.get(job.handler, math.inf) > QUICK_S
            if alone:  # it may take long: nobody waits behind it, or for its end
                self._give_back(slot + 1)
                self._part(slot)
            if not self._run_one(slot, job, handler):
                self._give_back(slot)
                break
            ran += 1
            now = time.monotonic()
            if alone:
                break
        self._disarm()
        self._jobs = []
        self._done += ran
        self._size = next_size(self._size, ran, now - started)

    def _run_one(self, slot: int, job: Claimed, handler: Handler[..., Any]) -> bool:
        """Run one job to its outcome and note its settlement; False if the keeper had taken it back."""
        page, batch = self.page, self._batch
        assert batch is not None
        limit = handler.options.timeout_s
        limit = self.settings.max_execution_time if limit is None else limit
        now = time.monotonic()
        if not page.begin(slot, now, now + limit if limit else 0.0):
            return False
        alone = page.count - slot == 1 and not len(batch)
        if alone:
            page.text = job.handler
            self._show(f"runs {job.handler} {job.id}")
        self._arm(min(now + limit if limit else math.inf, math.inf if alone else now + COMPANY_S))
        link = context = None
        if handler.codec.context_parameter is not None:
            link = RunLink(self, job)
            context = Context(link.job, link)
        outcome = self._runner.run(
            handler, job, context, handler.options.result_limit or self.settings.result_limit
        )
        ended = time.monotonic()
        took = ended - now
        pace = self._pace.get(job.handler)
        self._pace[job.handler] = took if pace is None else pace + 0.2 * (took - pace)
        if context is not None:
            context.flush()
        if link is not None and link.settled:
            self._after_transaction(slot, job, outcome)
        elif type(outcome) is Returned and outcome.result is None and outcome.note is None:
            page.end(slot, Mark.RETURNED)
            page.count_one(Counter.COMPLETED)
            batch.completed.append((job.id, now - page.claimed, ended - page.claimed, None, None))
        else:
            self._note(slot, job, handler, outcome, now - page.claimed, ended - page.claimed)
        return True

    def _note(
        self,
        slot: int,
        job: Claimed,
        handler: Handler[..., Any],
        outcome: Outcome,
        began_s: float,
        ended_s: float,
    ) -> None:
        if isinstance(outcome, TimedOut) and not self.lone:
            self._die_of_time_limit(outcome)
        settlement = decide(
            outcome,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            cancel_requested=self.page.cancel == job.id,
            backoff=Backoff.from_json(job.backoff)
            if job.backoff
            else handler.options.backoff or self._backoff,
            spread=random.random(),
        )
        assert self._batch is not None
        self._batch.add(job.id, settlement, began_s, ended_s)
        returned = isinstance(settlement, Complete)
        self.page.end(slot, Mark.RETURNED_VALUE if returned else Mark.ENDED)
        self.page.count_one(counter_of(settlement))
        tell(log, job.id, job.handler, job.attempts, job.max_attempts, settlement)

    def _miss(self, slot: int, job: Claimed, batch: Batch) -> None:
        """Leave a job whose handler this application lacks to others, for a while."""
        grace = self.settings.unknown_handler_grace
        self.page.marks[slot] = Mark.DROPPED
        if grace and (job.parked_s is None or job.parked_s < grace):
            batch.parked.append((job.id, f"handler:{job.handler}"))
            self.page.count_one(Counter.PARKED)
            log.warning("job %d is left to others: no handler %r in this application", job.id, job.handler)
            return
        error = ErrorInfo("UnknownHandler", f"no application here has a handler {job.handler!r}")
        settlement = Bury(error)
        batch.add(job.id, settlement)
        self.page.count_one(Counter.BURIED)
        self._done += 1
        tell(log, job.id, job.handler, job.attempts, job.max_attempts, settlement)

    def _give_back(self, slot: int) -> None:
        """Give back what is held from `slot` on with the next settlement."""
        batch = self._batch
        assert batch is not None
        for place in range(slot, len(self._jobs)):
            if self.page.marks[place] == Mark.HELD:
                self.page.marks[place] = Mark.DROPPED
                batch.add(self._jobs[place].id, GiveBack())
                self.page.count_one(Counter.GIVEN_BACK)

    def _part(self, slot: int) -> None:
        """Settle at once all but the job in `slot`, so that nobody waits behind it or for its end."""
        batch = self._batch
        if batch is None or not len(batch) or self._in_store:
            return
        self._in_store = True
        try:
            claims.turn(self._connection(), batch, None)
        except (psycopg.Error, connect.DatabaseUnreachable) as error:
            log.warning("cannot settle early: %s", connect.unreachable(error).message)
            return  # the next turn does it
        finally:
            self._in_store = False
        for place in range(self.page.count):
            if place != slot:
                self.page.marks[place] = Mark.SETTLED
        self.page.settled = time.monotonic()
        self._batch = Batch(batch.lease)

    # ── signals ───────────────────────────────────────────────────────────────────────────────────────────────

    def _install(self) -> None:
        """(Re)install the signal handlers: the application or a handler may have replaced them."""
        if not self._alarms:
            return
        if self._waker is not None:
            self._waker.install()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_stop)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)
            signal.signal(signal.SIGUSR2, self._on_cancel)
        self._alarm_before = signal.signal(signal.SIGALRM, self._on_alarm)

    def _on_stop(self, *_: object) -> None:
        self.leaving = self.leaving or "asked to stop"

    def _on_cancel(self, *_: object) -> None:
        page = self.page
        if self._runner.inside and page.current >= 0 and page.cancel == page.ids[page.current]:
            self._runner.interrupt(JobCancelled("the job was cancelled"))

    def _on_alarm(self, *_: object) -> None:
        self._armed = math.inf
        page = self.page
        if not self._runner.inside:
            return
        if self._in_store:
            self._arm(time.monotonic() + 0.02)
        elif page.deadline and time.monotonic() >= page.deadline - 0.001:
            self._arm(time.monotonic() + 1.0)  # and again, should the handler swallow it
            limit = page.deadline - page.began
            self._runner.interrupt(TimeLimitExceeded(f"the run was over its time limit of {limit:g} s"))
        else:
            slot = page.current
            if slot >= 0:
                self._give_back(slot + 1)
                self._part(slot)
            if page.deadline:
                self._arm(page.deadline)

    def _arm(self, at: float) -> None:
        if at < self._armed and self._alarms:
            self._armed = at
            signal.setitimer(signal.ITIMER_REAL, max(at - time.monotonic(), 0.0001))

    def _disarm(self) -> None:
        if self._armed < math.inf:
            self._armed = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _die_of_time_limit(self, outcome: TimedOut) -> None:
        """End this process and all it started: a job over its limit is really dead before it may run again.

        The keeper settles the job; the rest of the batch is settled here.
        """
        slot = self.page.current
        self._disarm()
        self.page.text = outcome.error.traceback or outcome.error.message
        self._give_back(slot + 1)
        self._part(slot)
        self.page.cut = Cut.TIME_LIMIT
        os.killpg(0, signal.SIGKILL)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────

    def _idle(self) -> bool:
        """Wait for work; False if an empty queue is a reason to leave."""
        page, mode = self.page, self.plan.mode
        page.empty = page.looked
        if mode is Mode.ONCE or (mode is Mode.FLUSH and self.lone):
            return False
        if self._waker is not None:
            self._install()
        if self._pause < len(HOT_PAUSES_S):
            self._sleep(HOT_PAUSES_S[self._pause])
            self._pause += 1
        elif mode is Mode.FLUSH:
            self._poke()
            self._sleep(0.05)
        else:
            page.phase = Phase.SLEEPING
            self._show("idle")
            self._poke()
            self._sleep(self.settings.worker_sleep * OWN_LOOK_S)
            self._lanes.rewind()
        return True

    def _sleep(self, seconds: float) -> None:
        if self.leaving:
            return
        if self._waker is None:
            time.sleep(seconds)
        else:
            self._waker.wait(seconds)

    def _poke(self) -> None:
        """Tell the keeper that this page has something new to read."""
        if self._poke_fd >= 0:
            with suppress(BlockingIOError, OSError):
                os.write(self._poke_fd, b".")

    def _show(self, what: str) -> None:
        if not self.lone:
            title(f"worker {self.name} [{','.join(self.plan.queues)}] {what}"[:200])

    # ── what a context asks ───────────────────────────────────────────────────────────────────────────────────

    def note_event(self, job: Claimed, kind: str, data: dict[str, Any]) -> None:
        """Write a journal event; a database that is away costs the event, never the job."""
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        self._in_store = True
        try:
            if not events.write(self._connection(), job.id, job.lease, kind, text):
                log.warning("job %d: the lease is lost, its %s is dropped", job.id, kind)
        except (psycopg.Error, connect.DatabaseUnreachable) as error:
            log.warning(
                "job %d: its %s cannot be written: %s", job.id, kind, connect.unreachable(error).message
            )
        finally:
            self._in_store = False

    @contextmanager
    def transaction(self, link: RunLink) -> Iterator[connect.Connection]:
        """Lend a connection whose commit also completes the job. It is the worker's second one."""
        if self._own is None or self._own.closed:
            self._own = connect.connect(self.plan.url, name=f"queuety worker {self.name} transaction")
        conn = self._own
        job = link.claimed
        try:
            with conn.transaction():
                yield conn
                now = time.monotonic() - self.page.claimed
                batch = Batch(job.lease)
                batch.add(job.id, Complete(), self.page.began - self.page.claimed, now)
                if not sum(cursor.rowcount for cursor in claims.settle(conn, batch)):
                    raise LeaseLost(f"job {job.id} has been given to somebody else", "nothing was committed")
            link.settled = True
        finally:
            # A fresh session next time: locks, settings and roles of this job must not reach another's.
            conn.close()
            self._own = None

    def _after_transaction(self, slot: int, job: Claimed, outcome: Outcome) -> None:
        """The job was completed by its own transaction; keep its result, if there is one."""
        self.page.end(slot, Mark.SETTLED)
        self.page.count_one(Counter.COMPLETED)
        if not isinstance(outcome, Returned):
            log.warning(
                "job %d had completed in its transaction; what came after it is ignored: %s", job.id, outcome
            )
            return
        if outcome.result is not None:
            with suppress(psycopg.Error, connect.DatabaseUnreachable):
                self._connection().execute(
                    "UPDATE queuety.finished_jobs SET result = %s::json WHERE id = %s",
                    [outcome.result, job.id],
                )
