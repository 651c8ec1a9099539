"""The keeper: the pool's eye on the database. Leases, deaths, cancels, wake-ups and duties; no user code."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from queuety.errors import QueuetyError
from queuety.features.recover import BATCH, recover, settle_dead
from queuety.model import (
    ErrorInfo,
    GiveBack,
    Interrupted,
    Lost,
    Outcome,
    Returned,
    Settlement,
    Tick,
    TimedOut,
)
from queuety.policy import scale
from queuety.policy.profile import Tally
from queuety.policy.retry import Backoff
from queuety.process import host, limits
from queuety.process.coroner import Coroner
from queuety.process.health import GRACE_S
from queuety.process.ledger import COUNTED, Cut, Ledger, Mark, Page, Phase
from queuety.process.parked import Parked
from queuety.process.plan import Mode, Plan
from queuety.process.report import count, counter_of, tell
from queuety.process.sleepers import Sleepers
from queuety.process.ticker import Ticker
from queuety.process.titles import title
from queuety.process.waiting import Waiting
from queuety.process.wake import Waker
from queuety.process.wire import Wire
from queuety.store import (
    bounded,
    claims,
    connect,
    depths,
    notices,
    profiles,
    retention,
    schedules,
    workers,
)
from queuety.store.claims import Facts
from queuety.store.profiles import Taken

log = logging.getLogger("queuety.keeper")

STRAY_S, STRAY_AGAIN_S = 0.5, 0.02  # how long after a death its last claim is looked for so often
TICK_S = 0.1  # while a worker is awake
STUCK_S = 0.3  # jobs held behind another for so long are taken back
STILL_S = 0.02  # between revoking a lease and reading what is begun; longer than any store takes to be seen
HOUR_S = 3600.0
SEEN_S = 15.0  # a process of ours is seen at least so often: after a minute of silence nobody counts on it
FORGET_S = 180.0  # a process that shows no life for so long is forgotten; one that lives registers again
PRUNE_AGAIN_S = 1.0  # between two bounded rounds of pruning
PRUNED = 5000  # ticks of schedules forgotten in one round
TEND_S = 600.0  # patience for the hourly duties
DEPTHS_S = 15.0  # between two looks how deep the queues are, if metrics are told
LATER_CAP = 100_000
ENDS = 20  # a flush ends though jobs were unparked so often if none of them was begun


class Keeper:
    """One per pool."""

    def __init__(self, plan: Plan, ledger: Ledger, wire: Wire, poke_fd: int, before: int = 0) -> None:
        """before: id of the keeper that died before us, 0: none did."""
        self.plan = plan
        self._before = before
        self.ledger = ledger
        self._stale = plan.settings.stale_timeout
        self._wire = wire
        self._poke_fd = poke_fd
        self._backoff = Backoff(kind=plan.settings.retry_backoff)
        self._sleepers = Sleepers(ledger, plan.queues)
        self._parked = Parked(plan, self._sleepers.lanes)
        self._released = 0  # jobs that were unparked or given back, and that nobody was woken for yet
        self._room_at: dict[int, float] = {}  # by page: what was heeded
        self._coroner = Coroner()
        self._waiting = Waiting(plan, ledger)
        self._ticker = Ticker() if plan.mode is Mode.WORK else None
        self._conn: bounded.Bounded | None = None
        self._conn_fd = -1
        self._id = 0
        self._retry_at = 0.0
        self._pause = 0.1
        self._lost_before = False
        self._listens = False
        self._dead: list[tuple[int, int, int]] = []  # page, pid, wait status
        self._strays: dict[str, tuple[int, float]] = {}  # dead worker → lease it knew of, how long to look
        self._settled_at = 0.0
        self._next: dict[str, float] = {}
        self._pruned_to = ""  # the unique key that the last round of pruning got to
        self._known: list[int] = []
        self._handlers: list[str] = []
        self._orphan_until = 0.0
        self._leaving = False
        self._ended = False
        self._ends = self._runs = 0
        self._waker = Waker([signal.SIGUSR1])
        self._figures = ledger.figures.keeper if ledger.figures else None
        if self._figures is not None:
            self._figures.reread()

    def run(self) -> None:
        """Watch until the supervisor says leave, or is gone and all workers with it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        title(f"keeper {self.plan.name} [{self.plan.queue_list}]"[:200])
        self._waker.watch(self._wire.fd)
        self._waker.watch(self._poke_fd)
        now = time.monotonic()
        self._next = dict.fromkeys(("renew", "strays", "recover", "refill", "poll"), now)
        self._next["count"] = now if self.plan.limits else math.inf
        self._next["depths"] = now if self._figures is not None else math.inf
        self._next["forget"] = now + 5 * random.random()
        self._next["tend"] = now + 5 + 10 * random.random()
        poked = False
        while True:
            now = time.monotonic()
            if self._figures is not None:
                self._figures.turned(now, GRACE_S)
            self._with_database(now, poked)
            if self._leaving and (not self._dead or self._conn is None):
                break
            if self._wire.closed and not self._orphaned(now):
                break
            _, ready = self._waker.wait(self._timeout(now))
            poked = self._poke_fd in ready and self._drain_pokes()
            if self._wire.fd in ready:
                self._read_wire()
        self._farewell()

    # ── what comes from the supervisor ────────────────────────────────────────────────────────────

    def _read_wire(self) -> None:
        for message in self._wire.receive():
            if "dead" in message:
                self._dead.append((message["dead"], message["pid"], message["status"]))
            elif message.get("leave"):
                self._leaving = True
        if self._wire.closed:
            self._waker.unwatch(self._wire.fd)

    def _orphaned(self, now: float) -> bool:
        """Look after workers whose supervisor is gone until they are; False once none is left."""
        if not self._orphan_until:
            self._orphan_until = now + self.plan.settings.worker_stop_timeout
            for page in self.ledger:  # sleepers too: by themselves they would notice at their next look only
                page.told = 1
                _signal(page.pid, signal.SIGTERM)
        left = self._orphan_until
        waiting = False
        for page in self.ledger:
            if any(index == page.index for index, _, _ in self._dead):
                waiting = True
            elif not host.alive(page.pid):
                self._dead.append((page.index, page.pid, 0))
                waiting = True
            else:
                waiting = True
                limits.enforce(page, now)
                if now > left:
                    page.cut = Cut.STOP
                    host.kill_group(page.pid)
        return waiting and now < left + 5

    # ── the database ──────────────────────────────────────────────────────────────────────────────

    def _with_database(self, now: float, poked: bool) -> None:
        """Do all that is due; whatever fails for want of the database is due again when it is back."""
        if self._conn is None and now < self._retry_at:
            return
        try:
            conn = self._connection()
            self._bury_dead(conn)
            self._hear(conn)
            self._take_back(conn, now)
            self._due("renew", min(self._stale / 4, SEEN_S), now, lambda: self._renew(conn, now))
            if self._listens and self.plan.mode is Mode.WORK:
                self._sleepers.mind(conn, self._id, now, poked=poked)
            self._heed_rates()
            if now >= min(self._next["refill"], self._next["poll"], self._next["count"]):
                with conn.transaction():  # one for all that is asked each second
                    unparked = self._unpark(conn, now)
                    self._due("poll", self.plan.settings.worker_sleep, now, lambda: self._poll(conn, now))
                    self._count(conn, now)
                    if self._ticker:
                        self._ticker.look(conn)
                self._released += unparked
                self._seen()
            if self._ticker and now >= self._ticker.at:
                self._ticker.act(conn, now, self._on_tick)
            if self._released:  # only now can a worker see it
                self._offer(conn)
            if self._waiting.any and self._waiting.unpark(conn, time.monotonic()):
                self._sleepers.look(conn, time.monotonic())
            self._due("strays", self.plan.settings.worker_sleep, now, lambda: self._give_back_strays(conn))
            self._due("recover", min(self._stale / 4, 60.0), now, lambda: self._recover(conn))
            self._due("depths", DEPTHS_S, now, lambda: self._tell_depths(conn))
            self._due("forget", 60.0, now, lambda: self._forget(conn))
            self._due("tend", HOUR_S, now, lambda: self._tend(conn))
            if self.plan.mode is Mode.FLUSH and not self._ended:
                self._end_of_flush(conn, now)
            if self._lost_before:  # only now: one that is read-only lets itself be connected to
                log.info("the database is back")
            self._lost_before, self._pause = False, 0.1
        except (connect.Trouble, QueuetyError) as error:
            if connect.again(error):
                return
            self._lose(error)

    def _connection(self) -> bounded.Bounded:
        if self._conn is None:
            conn = connect.connect(
                self.plan.url, name=f"queuety keeper {self.plan.name}", patience_s=bounded.PATIENCE_S
            )
            try:
                if not self._id:
                    name, queues = self.plan.name, self.plan.queues
                    self._id = workers.register(conn, "keeper", name, queues, None, os.getppid())
                    if self._before:
                        workers.replace(conn, self._before)
                    self._wire.send({"keeper": self._id})
                connect.pin(conn)
                self._listens = notices.listen(conn, self._on_notice)
            except BaseException:
                conn.close()
                raise
            self._conn = conn
            self._conn_fd = conn.fileno()  # noted: a broken connection does not tell it any more
            self._waker.watch(self._conn_fd)
            self._sleepers.forget()
            if self._lost_before:
                # Whoever lost it with us renews its leases first; only then is silence a sign of death.
                self._next["recover"] = time.monotonic() + min(self._stale, 30.0)
                self._next["renew"] = self._next["poll"] = 0.0
        return self._conn

    def _lose(self, error: BaseException) -> None:
        if not self._lost_before:
            log.warning("lost the database: %s", connect.unreachable(error).message)
        self._lost_before = True
        if self._figures is not None:
            self._figures.lost()
        if self._conn is not None:
            self._waker.unwatch(self._conn_fd)
            with suppress(connect.Trouble):
                self._conn.close()
            self._conn = None
        self._retry_at = time.monotonic() + self._pause * (0.5 + random.random())
        self._pause = min(self._pause * 2, 5.0)

    def _due(self, what: str, every_s: float, now: float, act: Callable[[], None]) -> None:
        if now >= self._next[what]:
            self._next[what] = now + every_s  # first: it may ask to be called earlier
            act()

    # ── deaths ────────────────────────────────────────────────────────────────────────────────────

    def _bury_dead(self, conn: connect.Connection) -> None:
        """Settle at once what dead workers held, as their pages tell."""
        while self._dead:
            index, _, status = self._dead[0]
            page = self.ledger.pages[index]
            outcomes = self._coroner.outcomes(page, status)
            counted = {job_id for _, job_id, mark in page.holdings() if mark in COUNTED}
            freed: set[str] = set()
            for fact, settlement in settle_dead(conn, page.lease, outcomes, self._backoff):
                freed.update(fact.keys)
                self._released += isinstance(settlement, GiveBack)
                _tell(fact, settlement)
                if fact.id not in counted:
                    self._count_dead(page, fact, settlement, outcomes[fact.id])
                if isinstance(outcomes[fact.id][0], Lost | TimedOut):
                    self._learn(conn, page, fact, outcomes[fact.id])
            if page.claiming and page.worker:
                self._strays[f"{self.plan.name}#{page.worker}"] = page.lease, time.monotonic() + self._stale
                self._give_back_strays(conn)
            if page.worker:
                workers.unregister(conn, [page.worker])
            self._settled_at = time.monotonic()
            self._next["poll"] = 0.0  # look at once: what it held is somebody else's now
            self._released += self._parked.tell(conn, freed)
            self._dead.pop(0)
            if self._wire.closed:
                page.clear()
            else:
                self._wire.send({"settled": index})

    def _learn(
        self, conn: connect.Connection, page: Page, fact: Facts, ending: tuple[Outcome, float, float]
    ) -> None:
        """Let a run that its worker did not survive teach its handler's profile: it took at least so much."""
        if page.current < 0 or page.ids[page.current] != fact.id or not self.plan.settings.resource_admission:
            return
        tally = Tally()
        tally.add(max(ending[2] - ending[1], 0.0))
        peak = page.peak - page.resident if page.peak and page.resident else None
        if peak is not None:
            tally.took(max(peak, 0), max(peak, 0))
        profiles.add(
            conn, [Taken(fact.handler, 1, tally.seconds, tally.durations, tally.peak, tally.passing)]
        )

    def _count_dead(
        self, page: Page, fact: Facts, settlement: Settlement, ending: tuple[Outcome, float, float]
    ) -> None:
        """Count what became of a job that its worker has not counted."""
        outcome, began_s, ended_s = ending
        page.count_one(counter_of(settlement))
        if page.figures is not None and not isinstance(outcome, Interrupted):
            page.figures.reread()
            count(page.figures, fact.queue, fact.handler, outcome, settlement, max(ended_s - began_s, 0.0))

    def _give_back_strays(self, conn: connect.Connection) -> None:
        """Give back what was claimed by workers that died before the answer came.

        Again and again for a while: the server may commit a claim long after the death of who asked for it.
        """
        now = time.monotonic()
        for name, (lease, until) in list(self._strays.items()):
            found = claims.strays(conn, name, [lease])
            if found:  # they may have held places of limited keys, which we do not know: look at all
                self._released += len(found)
                self._next["refill"] = 0.0
            if found or now > until:
                del self._strays[name]
            elif now < until - self._stale + STRAY_S:  # most come at once
                self._next["strays"] = min(self._next["strays"], now + STRAY_AGAIN_S)

    # ── leases, cancels, company ──────────────────────────────────────────────────────────────────

    def _held(self, now: float, older_s: float) -> list[tuple[Page, int, int]]:
        """(page, job id, lease) of unsettled jobs claimed more than `older_s` ago by workers that are alive."""
        dead = {index for index, _, _ in self._dead}
        return [
            (page, job_id, page.lease)
            for page in self.ledger
            if page.count and now - page.claimed > older_s and page.index not in dead
            for _, job_id, mark in page.holdings()
            if mark is not Mark.SETTLED
        ]

    def _renew(self, conn: connect.Connection, now: float) -> None:
        """Renew the leases of what living workers hold; end the run of whoever has lost his."""
        held = self._held(now, self._stale / 4)
        if held:
            ours = claims.renew(conn, [(job_id, lease) for _, job_id, lease in held], self._stale)
            for page, job_id, lease in held:
                asked = ours.get((job_id, lease))
                if asked is None:
                    self._lease_lost(page, job_id, lease)
                elif asked:
                    self._cancel(job_id, now)
        alive = {page.worker: page.pid for page in self.ledger if page.worker}
        if forgotten := workers.seen(conn, [self._id, *alive]):
            self._restore(conn, {number: alive[number] for number in forgotten if number != self._id})
        self._tell_memory(conn)
        self._seen()

    def _seen(self) -> None:
        """Note that the database has answered."""
        if self._figures is not None:
            self._figures.heard(time.monotonic())

    def _on_tick(self, tick: Tick) -> None:
        if self._figures is not None and tick.ended is None:  # else it was counted when it was fired
            self._figures.ticked(tick.kind, tick.ticks)

    def _restore(self, conn: connect.Connection, alive: dict[int, int]) -> None:
        """Register again: other pools have forgotten us while we were cut off from the database."""
        pool, name, queues = os.getppid(), self.plan.name, self.plan.queues
        workers.restore(conn, "keeper", name, queues, None, pool, {self._id: os.getpid()})
        workers.restore(conn, "worker", name, queues, self._handlers, pool, alive)
        self._sleepers.forget()  # it went with the keeper's row

    def _tell_memory(self, conn: connect.Connection) -> None:
        workers.tell(conn, self._id, json.dumps({**self._waiting.tell(), "kills": self._coroner.kills}))

    def _lease_lost(self, page: Page, job_id: int, lease: int) -> None:
        slot = page.current
        if page.lease != lease or slot < 0 or page.ids[slot] != job_id or page.marks[slot] != Mark.BEGUN:
            return  # it has been settled while we asked
        log.warning(
            "job %d was given to somebody else while worker %d ran it: the run is ended", job_id, page.pid
        )
        page.cut = Cut.LEASE_LOST
        host.kill_group(page.pid)

    def _cancel(self, job_id: int, now: float) -> None:
        """Tell the worker that runs the job; the supervisor sees to it that it ends."""
        for page in self.ledger:
            for slot, held, mark in page.holdings():
                if held == job_id and mark in (Mark.HELD, Mark.BEGUN) and page.cancel != job_id:
                    page.cancel_at = now
                    page.cancel = job_id
                    if mark is Mark.BEGUN and slot == page.current and not page.cooperates:
                        _signal(page.pid, signal.SIGUSR2)

    def _take_back(self, conn: connect.Connection, now: float) -> None:
        """Give back what is held behind a job that takes long and whose worker cannot do it itself."""
        for page in self.ledger:
            slot, lease = page.current, page.lease
            if slot < 0 or now - page.began < STUCK_S or page.revoked == lease:
                continue
            if not any(mark is Mark.HELD for _, _, mark in page.holdings()):
                continue
            run = page.run
            page.revoked = lease
            time.sleep(STILL_S)
            if page.run != run or page.current != slot or page.lease != lease:
                continue  # it went on and has seen the revocation: it gives back by itself
            outcomes: dict[int, tuple[Outcome, float, float]] = {}
            for _, job_id, mark in page.holdings():
                if mark is Mark.HELD:
                    outcomes[job_id] = (Interrupted(), 0.0, 0.0)
                elif mark is Mark.RETURNED:
                    outcomes[job_id] = (Returned(), 0.0, now - page.claimed)
            for _, settlement in settle_dead(conn, lease, outcomes, self._backoff):
                log.debug("took a job back from behind a long one: %s", settlement)

    # ── wake-ups ──────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, conn: connect.Connection) -> None:
        """Take in what has been notified."""
        if self._listens:
            notices.take_in(conn, self._on_notice)

    def _on_notice(self, payload: str) -> None:
        kind, _, rest = payload.partition(":")
        if kind == "q" and rest in self.plan.queues:
            self._sleepers.wake(1)
        elif kind == "c" and rest.isdigit():
            self._cancel(int(rest), time.monotonic())
        elif kind == "k":
            self._next["refill"] = 0.0
        elif kind == "s":
            self._next["poll"] = 0.0

    def _look(self, conn: connect.Connection, now: float) -> None:
        next_s = self._sleepers.look(conn, now)
        if next_s is not None and next_s < self.plan.settings.worker_sleep:
            self._again_by(now + max(next_s, 0.0) + 0.001)

    def _poll(self, conn: connect.Connection, now: float) -> None:
        self._coroner.watch()
        if self._sleepers.asleep():
            self._look(conn, now)
        held = self._held(now, 0.5)
        if held:
            for job_id in claims.cancels(conn, [job_id for _, job_id, _ in held]):
                self._cancel(job_id, now)

    def _count(self, conn: connect.Connection, now: float) -> None:
        """Tell the supervisor of an adaptive pool how many jobs are due that a worker could claim."""
        interval_s = self.plan.settings.worker_pool_scale_interval
        if now >= self._next["count"] - interval_s / 2:  # a little early, to share the transaction
            self._next["count"] = now + interval_s
            # Before the first worker has told its handlers, every job may be ours.
            ours = self._handlers_here(conn) or None
            due, _ = claims.look(conn, self._sleepers.lanes, scale.COUNTED, ours)
            self._wire.send({"backlog": due})

    def _unpark(self, conn: connect.Connection, now: float) -> int:
        """Unpark what limits have room for and our workers have handlers for; returns how many."""
        unparked = 0
        polling = now >= self._next["poll"]
        if polling or now >= self._next["refill"]:
            unparked, self._next["refill"] = self._parked.refill(conn, now)
        if polling:
            unparked += self._parked.unpark(conn, self._handlers_here(conn))
            self._waiting.look(conn, self._handlers)
        return unparked

    def _offer(self, conn: connect.Connection) -> None:
        """Wake workers for what has become claimable: ours, and those of other pools if too few of ours sleep."""
        count, self._released = self._released, 0
        asleep = len(self._sleepers.asleep())
        if asleep:
            self._look(conn, time.monotonic())
        if asleep < count:
            notices.wake(conn, self.plan.queues)

    def _heed_rates(self) -> None:
        """Look for room under a rate when the workers that wait for it say that there is some."""
        for page in self.ledger:
            if page.room_at != self._room_at.get(page.index, 0.0):
                self._room_at[page.index] = page.room_at
                self._next["refill"] = min(self._next["refill"], page.room_at)

    def _again_by(self, moment: float) -> None:
        self._next["poll"] = min(self._next["poll"], moment)

    def _handlers_here(self, conn: connect.Connection) -> list[str]:
        """Names of the handlers that our workers have."""
        ids = [page.worker for page in self.ledger if page.worker]
        if ids != self._known:
            self._known, self._handlers = ids, workers.handlers(conn, ids)
            self._tell_memory(conn)
        return self._handlers

    # ── duties ────────────────────────────────────────────────────────────────────────────────────

    def _recover(self, conn: connect.Connection) -> None:
        # One round at a time: however many there are, our own workers' leases are renewed between.
        freed: set[str] = set()

        def told(fact: Facts, settlement: Settlement) -> None:
            freed.update(fact.keys)
            _tell(fact, settlement)
            count(self._figures, fact.queue, fact.handler, Lost(ErrorInfo("", "")), settlement, None)

        done = recover(conn, self._backoff, told, rounds=1)
        self._released += self._parked.tell(conn, freed)
        if done.total >= BATCH:
            self._next["recover"] = 0.0
        if done.total:
            self._next["poll"] = 0.0  # what they held is somebody else's now
            log.warning(
                "recovered %d jobs: %d retried, %d buried, %d cancelled",
                done.total,
                done.retried,
                done.buried,
                done.cancelled,
            )

    def _tend(self, conn: bounded.Bounded) -> None:
        """Make partitions for the coming days, drop what is past its keeping."""
        settings = self.plan.settings
        if self._figures is not None:
            self._figures.turned(time.monotonic(), TEND_S * 10)  # one time limit for each of the statements
        with conn.patient(TEND_S):  # a day's rows may have to be moved
            retention.make_ahead(conn)
            profiles.prune(conn, settings.resource_profile_window_minutes)
            days = settings.retention_days, settings.buried_retention_days, settings.log_retention_days
            if retention.prune(conn, *days).more:
                self._next["tend"] = time.monotonic() + PRUNE_AGAIN_S
            _, self._pruned_to = retention.prune_keys(conn, self._pruned_to)
            if self._pruned_to:
                self._next["tend"] = time.monotonic() + PRUNE_AGAIN_S
            retention.prune_starts(conn)
            if schedules.prune(conn, settings.log_retention_days, PRUNED) == PRUNED:
                self._next["tend"] = time.monotonic() + PRUNE_AGAIN_S

    def _tell_depths(self, conn: connect.Connection) -> None:
        """Tell the supervisor how deep the queues are, for its metrics."""
        queues, overdue = depths.look(conn, self.plan.queues)
        self._wire.send(
            {"depths": {"queues": {name: one._asdict() for name, one in queues.items()}, "overdue": overdue}}
        )

    def _forget(self, conn: connect.Connection) -> None:
        """Forget processes of pools that are gone."""
        workers.forget_silent(conn, max(2 * self._stale, FORGET_S))

    def _end_of_flush(self, conn: connect.Connection, now: float) -> None:
        """Tell the supervisor once every worker has looked in vain after the last settlement."""
        pages = [page for page in self.ledger if page.ready]  # one that still waits to start holds nothing
        if not pages or self._dead:
            return
        last = max(self._settled_at, *(page.settled for page in pages))
        if all(page.empty > last and not page.count for page in pages):
            self._waiting.look(conn, self._handlers_here(conn))
            if self._ends < ENDS and self._waiting.unpark(conn, now, still=True):
                runs = sum(page.run for page in self.ledger)
                self._ends, self._runs = (self._ends + 1 if runs == self._runs else 0), runs
                self._settled_at = time.monotonic()  # go on: what waited for the memory of others can run now
                return
            later = claims.left(conn, self.plan.queues, LATER_CAP)
            self._ended = True
            self._wire.send({"ended": True, "later": later})

    # ── rhythm ────────────────────────────────────────────────────────────────────────────────────

    def _timeout(self, now: float) -> float:
        if self._dead and self._conn is not None:
            return 0.0
        if self._conn is None:
            return max(0.01, min(self._retry_at - now, TICK_S))
        until = min(*self._next.values(), self._ticker.at if self._ticker else math.inf) - now
        if (
            any(page.phase != Phase.SLEEPING for page in self.ledger)
            or self._sleepers.settling
            or self._wire.closed
        ):
            until = min(until, 0.02 if self.plan.mode is not Mode.WORK else TICK_S)
        return max(0.0, until)

    def _drain_pokes(self) -> bool:
        with suppress(BlockingIOError):
            os.read(self._poke_fd, 65536)
        return True

    def _farewell(self) -> None:
        if self._conn is not None:
            with suppress(connect.Trouble):
                self._sleepers.deregister(self._conn, self._id)
                workers.unregister(self._conn, [self._id])
                self._conn.close()


def _tell(fact: Facts, settlement: Settlement) -> None:
    tell(log, fact.id, fact.handler, fact.queue, fact.attempts, fact.max_attempts, settlement)


def _signal(pid: int, number: signal.Signals) -> None:
    if pid:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
