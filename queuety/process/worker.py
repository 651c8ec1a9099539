"""The worker: claims jobs, runs them, settles them. One process, one connection, one loop."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from queuety import tracing
from queuety.errors import JobCancelled, TimeLimitExceeded
from queuety.limits import of_handlers
from queuety.policy.guard import SHORTEST_S, next_guard
from queuety.policy.prefetch import next_size
from queuety.policy.retry import Backoff
from queuety.policy.shares import Shares
from queuety.process import declared, memory, running
from queuety.process.alarm import Alarm
from queuety.process.holding import LAST_SPANS_S, SLACK_S, Holding
from queuety.process.host import end_own_group, own_memory
from queuety.process.ledger import SLOTS, Counter, Cut, Page, Phase
from queuety.process.output import Standard
from queuety.process.parked import PLACES
from queuety.process.plan import Mode, Plan
from queuety.process.profiler import Profiler
from queuety.process.room import Room
from queuety.process.runner import Runner
from queuety.process.titles import title
from queuety.process.wake import Waker
from queuety.redaction import redact_text
from queuety.store import bounded, claims, connect, notices, workers
from queuety.store.batch import RATE
from queuety.store.claims import Claimed, Want
from queuety.store.lanes import Lanes

if TYPE_CHECKING:
    from queuety.model import NewSchedule
    from queuety.process.plan import Registry

log = logging.getLogger("queuety.worker")

REWIND_S = 0.25  # a claim starts from the front of its lanes at least so often
HOT_PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)  # polls after work, before going to sleep
OWN_LOOK_S = 10  # a sleeper looks by itself after so many poll intervals, should the keeper be gone
MEMORY_CHECK_S = 0.2
POKE_S = 0.02
QUEUE_OF = attrgetter("queue")
AGAIN_S = (
    1.0  # a handler is interrupted again after so long, should it swallow that; until then it may tidy up
)


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
        self.running = running.within if lone else running.here  # which job log lines are about
        self.name = plan.name
        self.leaving = ""  # why, once it is to leave
        self._poke_fd = poke_fd
        self._parent = os.getppid()
        self._lanes = Lanes(plan.queues)
        self._shares = Shares(plan.weights) if any(plan.weights.values()) else None
        self.runner = Runner()
        self.backoff = Backoff(kind=self.settings.retry_backoff)
        self.guard_s = SHORTEST_S  # within which what the last claim brought must begin, if it has a rate
        self._budgets = claims.budgets(self.settings)
        self._limits = of_handlers({name: handler.options.limits for name, handler in registry.items()})
        self.pace: dict[str, float] = {}  # seconds a handler takes, a moving mean
        # The caller's own process is not ours to measure or to replace.
        wary = self.settings.resource_admission and not lone
        self.profiler = Profiler(self.settings, page) if wary else None
        self.room: Room | None = None
        self.skip: set[str] = set()  # handlers for which there is no time left
        self._size = 1
        self._done = 0
        self._pause = 0
        self._rewound = self._born = time.monotonic()
        self._memory_checked = 0.0
        self._poked = 0.0
        self._orphan_until = 0.0  # when to end the run, once the supervisor is gone
        self._size_asked = 1
        self._cancelled = (0, 0.0)  # the run that was interrupted for its cancellation, and when
        self.forked = False  # true only in a process that a handler has forked
        self.alarm = Alarm()
        self._holding: Holding | None = None  # what the last claim brought, until it is settled
        self.in_store = False
        self._conn: connect.Connection | None = None
        self._main_thread = threading.current_thread() is threading.main_thread()
        self._waker: Waker | None = None
        self._standard = None if lone else Standard()

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    def start(self, schedules: Sequence[NewSchedule] | None = None) -> None:
        """Connect, register and become able to claim. Raises what kept it from that.

        schedules: that the application declares; written, unless a worker of the pool has written the same before.
        """
        if not self.lone and self._waker is None:
            self._waker = Waker([signal.SIGUSR1])
            os.register_at_fork(after_in_child=self._disown)
        self._install()
        self._conn = self._connected(self.plan.name)
        try:
            self.page.worker = worker_id = workers.register(
                self._conn, "worker", self.plan.name, self.plan.queues, sorted(self.registry), self._parent
            )
            if schedules is not None:
                self._declare(schedules)
        except connect.Trouble as error:
            self._conn.close()
            raise connect.translate(error) from error  # one that is read-only is away for now
        self.name = f"{self.plan.name}#{worker_id}"
        if not self.lone:
            running.be(worker=worker_id)
        base = own_memory()
        self._memory_limit = self.settings.worker_max_memory
        if self._memory_limit and base > self._memory_limit:
            self._memory_limit = base + memory.HEADROOM
            log.warning(
                "the application alone takes %d MB; a worker is replaced at %d MB",
                base >> 20,
                self._memory_limit >> 20,
            )
        self.page.base = base
        if self.profiler is not None:
            limit = self._memory_limit
            self.room = Room(self.settings, self.profiler, self.page, self.plan.until, limit)
        self.page.ready = time.monotonic()
        self.show("idle")

    def _declare(self, schedules: Sequence[NewSchedule]) -> None:
        """Write what the application declares once for each pool and version of the code.

        Not at every start of a worker: while a deployment goes on, old and new pools would undo each other's.
        """
        ledger, told = self.page.ledger, declared.digest(schedules)
        if ledger.declared != told:
            declared.write(self.connection(), schedules, self.settings.app or "")
            ledger.declared = told

    def loop(self) -> None:
        """Settle, claim, run, until there is a reason to leave."""
        while True:
            leaving = self._must_leave()
            from_front = self._rewind()
            jobs, refused = self._turn(None if leaving else self._want())
            if self.profiler is not None:
                self._share(self.profiler, jobs, last=bool(leaving))
            if leaving:
                return
            if jobs:
                self._pause = 0
                self.page.empty = 0.0
                if len(jobs) == self._size_asked and self.page.looked - self._poked > POKE_S:
                    self._poked = self.page.looked
                    self.poke()  # there may be more than one worker's work: let the keeper wake others
                holding = self._holding = Holding(self, jobs)
                took = holding.run()
                self.page.worked += took
                self.guard_s = next_guard(self.guard_s, self.page.claimed - self.page.looked)
                if self._standard is not None:
                    self._standard.put_back()
                self._done += holding.done
                if self._shares:
                    self._shares.ran(holding.queues)
                self._size = next_size(self._size, holding.done, took)
                if holding.late:
                    self._size = max(1, min(self._size, holding.done))
            if refused:
                continue  # there may be work behind what had to be parked
            if len(jobs) < self._size_asked and not from_front:
                self._lanes.rewind()  # came back short: what is behind the cursors comes next
            elif not jobs and not self._idle():
                return

    def stop(self) -> None:
        """Leave things as they should be found."""
        self.page.phase = Phase.LEAVING
        if not self.lone:
            tracing.flush(LAST_SPANS_S)
        if self.lone:  # a process of the pool ends without waiting for what handlers have left running
            self.runner.close()
            self.alarm.uninstall()
        if self._conn is not None:
            with suppress(connect.Trouble):
                if self.lone:
                    workers.unregister(self._conn, [self.page.worker])
                self._conn.close()
        if self._waker is not None:
            self._waker.close()

    def _must_leave(self) -> str:
        if self.leaving:
            return self.leaving
        plan, settings = self.plan, self.settings
        if self.page.told:
            self.leaving = "asked to stop"
        elif not self.lone and os.getppid() != self._parent:
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
            if (size := own_memory()) > self._memory_limit:
                self.leaving = f"replaced at {size >> 20} MB"
        return self.leaving

    # ── claim and settle ──────────────────────────────────────────────────────────────────────────

    def _want(self) -> Want:
        size = min(self._size, SLOTS)
        if self.plan.mode is Mode.ONCE:
            size = 1
        elif self.plan.max_jobs:
            size = min(size, self.plan.max_jobs - self._done)
        elif not self.lone and self.settings.worker_max_jobs:
            size = min(size, max(1, self.settings.worker_max_jobs))
        self._size_asked = size
        if self._shares:
            self._lanes.arrange(self._shares.plan(size))
        return Want(
            self._lanes,
            size,
            self.name,
            self.settings.stale_timeout,
            tuple(self.skip),
            self._budgets,
            self.guard_s + SLACK_S,
            self._limits,
        )

    def _rewind(self) -> bool:
        """Start from the front of the lanes now and then; True if the next claim does."""
        now = time.monotonic()
        if now - self._rewound >= REWIND_S:
            self._lanes.rewind()
        if self._lanes.at_front:
            self._rewound = now
        return self._lanes.at_front

    def _turn(self, want: Want | None) -> tuple[list[Claimed], int]:
        """Settle what is done and claim, through whatever the database does meanwhile.

        Returns the jobs, and how many others had to be parked for want of room.
        """
        page = self.page
        batch = self._holding.batch if self._holding else None
        if batch is None and want is None:
            return [], 0
        failures = 0
        while True:
            page.phase = Phase.LOOKING
            page.looked = time.monotonic()
            page.claiming = 1 if want else 0
            try:
                settled, jobs, refused, left, room_s = claims.turn(self.connection(), batch, want)
                break
            except connect.TROUBLE as error:
                failures += 1
                if connect.again(error) and failures < 20:
                    time.sleep(random.random() * 0.01 * failures)
                elif connect.lost(error):
                    self._reconnect(error)
                    if batch is None and self.leaving:
                        return [], 0  # nothing in hand: leaving does not wait for the database
                elif connect.unstorable(error) and batch and failures < 3:
                    log.error("details cannot be stored, the bare outcomes are: %s", redact_text(str(error)))
                    batch.strip()
                else:
                    raise connect.translate(error) if isinstance(error, connect.Trouble) else error from error
        if batch is not None:
            page.settled = time.monotonic()
            page.count = 0
            if settled < len(batch) and page.revoked != page.lease:
                log.warning(
                    "%d jobs had been given to others: their outcomes are dropped", len(batch) - settled
                )
            self._holding = None
        if want and self._shares:
            jobs = self._shares.deal(jobs, QUEUE_OF, want.size)
        if jobs:
            page.hold(jobs[0].lease, [job.id for job in jobs])
            page.claimed = time.monotonic()
        page.claiming = 0
        if refused:
            page.count_one(Counter.PARKED, len(refused))
            if any(key.startswith(RATE) for key in refused):
                room_s = 0.0  # the keeper finds when
        if room_s is not None:
            page.room_at = time.monotonic() + room_s
            if page.looked - self._poked > POKE_S:
                self._poked = page.looked
                self.poke()
        if left:
            self._offer()
        return jobs, len(refused)

    def _offer(self) -> None:
        """Tell others, of this pool and of others, that there is work which this worker does not take."""
        self.poke()
        with suppress(*connect.TROUBLE):
            notices.wake(self.connection(), self.plan.queues)

    def _share(self, profiler: Profiler, jobs: list[Claimed], *, last: bool) -> None:
        """Share what runs have taken and learn what these jobs' handlers take, between the turns.

        The database may be away: a profile is advice, and a loss of the connection is the next turn's matter.
        """
        conn = self._conn
        if conn is None or conn.closed:
            return
        profiler.write(conn, last=last)
        if jobs:
            with suppress(*connect.TROUBLE):
                profiler.read(conn, {job.handler for job in jobs})

    def connection(self) -> connect.Connection:
        if self._conn is None or self._conn.closed:
            self._conn = self._connected(self.name)
            lease = self._holding.batch.lease if self._holding else self.page.lease
            # An answer to a claim may have been lost with the old connection: give back what it brought.
            lost = claims.strays(self._conn, self.name, [lease])
            if lost:
                log.warning("gave back %d jobs whose claim was never answered", len(lost))
        return self._conn

    def _connected(self, name: str) -> connect.Connection:
        return connect.connect(self.plan.url, name=f"queuety worker {name}", patience_s=bounded.PATIENCE_S)

    def _reconnect(self, error: BaseException) -> None:
        """Drop the connection and wait until another can be had."""
        log.warning("lost the database: %s", connect.unreachable(error).message)
        self._check_descriptors()
        pause = 0.1
        while True:
            if self._conn is not None:
                with suppress(connect.Trouble):
                    self._conn.close()
            self._conn = None
            try:
                self.connection()
            except connect.TROUBLE:
                if self._holding is None and self._must_leave():
                    return
                self._sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, 5.0)
            else:
                log.info("the database is back")
                return

    @property
    def untouched(self) -> bool:
        """True until it has run a job."""
        return not self._done

    def learn(self, handler: str, took_s: float) -> None:
        """Take one run's seconds into the handler's moving mean."""
        pace = self.pace.get(handler)
        self.pace[handler] = took_s if pace is None else pace + 0.2 * (took_s - pace)
        if self.profiler is not None:
            self.profiler.note(handler, took_s)

    # ── signals ───────────────────────────────────────────────────────────────────────────────────

    def _install(self) -> None:
        """(Re)install the signal handlers: the application or a handler may have replaced them."""
        if not self._main_thread:
            return
        if self._waker is not None:
            self._waker.install()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_stop)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)
            signal.signal(signal.SIGUSR2, self._on_cancel)
        self.alarm.install(self._on_alarm)

    def _check_descriptors(self) -> None:
        """Leave if a handler has closed our pipes: what is opened next gets their numbers, and would be written to."""
        if self._waker is not None and not self._waker.intact:
            self._waker.close()
            self._waker, self._poke_fd = None, -1
            self.leaving = self.leaving or "replaced: a handler has closed descriptors that were not its own"

    def _disown(self) -> None:
        """Make a process that a handler has forked one of its own: it can be signalled, and is no worker."""
        self.forked = True
        signal.set_wakeup_fd(-1)
        for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM"):
            signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_DFL)

    def _on_stop(self, *_: object) -> None:
        self.leaving = self.leaving or "asked to stop"
        if not self.lone and not self._orphan_until and os.getppid() != self._parent:
            # Nobody may be left to renew the lease: be gone before another worker can be given the job.
            patience = min(self.settings.worker_stop_timeout, self.settings.stale_timeout / 2)
            self._orphan_until = time.monotonic() + patience
            self.alarm.at(self._orphan_until)

    def _on_cancel(self, *_: object) -> None:
        page, now = self.page, time.monotonic()
        if not self.runner.inside or page.current < 0 or page.cancel != page.ids[page.current]:
            return
        if self.in_store:  # not into a statement of ours; the supervisor repeats it
            return
        if page.run != self._cancelled[0] or now - self._cancelled[1] >= AGAIN_S:
            self._cancelled = page.run, now
            self.runner.interrupt(JobCancelled("the job was cancelled"))

    def _on_alarm(self, *_: object) -> None:
        self.alarm.rang()
        page = self.page
        if not self.runner.inside:
            return
        if self._orphan_until:
            if time.monotonic() >= self._orphan_until - 0.001:
                page.cut = Cut.STOP
                end_own_group()
            self.alarm.at(self._orphan_until)
        if self.in_store:
            self.alarm.at(time.monotonic() + 0.02)
        elif page.deadline and time.monotonic() >= page.deadline - 0.001:
            self.alarm.at(time.monotonic() + AGAIN_S)
            limit = page.deadline - page.began
            self.runner.interrupt(TimeLimitExceeded(f"the run was over its time limit of {limit:g} s"))
        else:
            if self._holding is not None and page.current >= 0:
                self._holding.part(page.current)
            if page.deadline:
                self.alarm.at(page.deadline)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def _idle(self) -> bool:
        """Wait for work; False if an empty queue is a reason to leave."""
        page, mode = self.page, self.plan.mode
        page.empty = page.looked
        if mode is not Mode.WORK and not self._pause and self._refill():
            return True
        if mode is Mode.ONCE or (mode is Mode.FLUSH and self.lone):
            return False
        self._check_descriptors()
        if self._waker is not None:
            self._install()
        if self._pause < len(HOT_PAUSES_S):
            self._sleep(HOT_PAUSES_S[self._pause])
            self._pause += 1
        elif mode is Mode.FLUSH:
            self.poke()
            self._sleep(0.05)
        else:
            if self.profiler is not None:
                self._share(self.profiler, [], last=True)
            page.phase = Phase.SLEEPING
            self.show("idle")
            self.poke()
            self._sleep(self.settings.worker_sleep * OWN_LOOK_S)
            self._lanes.rewind()
        return True

    def _refill(self) -> bool:
        """Unpark what there is room for; True if there was any. A one-shot run may have no keeper that has done it."""
        after: str | None = None
        found = 0
        try:
            while True:
                unparked, _, after = claims.refill(
                    self.connection(), self._lanes, self._budgets, places=PLACES, after=after
                )
                found += unparked
                if after is None:
                    return found > 0
        except connect.TROUBLE as error:
            log.warning("cannot look for parked jobs: %s", connect.unreachable(error).message)
            return False

    def _sleep(self, seconds: float) -> None:
        if self.leaving:
            return
        if self._waker is None:
            time.sleep(seconds)
        else:
            self._waker.wait(seconds)

    def poke(self) -> None:
        """Tell the keeper that this page has something new to read."""
        if self._poke_fd >= 0:
            with suppress(BlockingIOError, OSError):
                os.write(self._poke_fd, b".")

    def show(self, what: str) -> None:
        if not self.lone:
            title(f"worker {self.name} [{self.plan.queue_list}] {what}"[:200])
