"""The supervisor: forks, reaps, signals, and nothing else. No database code, no user code, one thread."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from queuety import __version__
from queuety.process import child, host, limits, metrics, running
from queuety.process.health import Health
from queuety.process.ledger import Counter, Cut, Ledger, Page, Phase
from queuety.process.listener import Listener
from queuety.process.plan import DRY, Mode, Plan
from queuety.process.size import Size, by_use, spare
from queuety.process.titles import title
from queuety.process.wake import Waker
from queuety.process.wire import Wire

log = logging.getLogger("queuety.supervisor")

MOST_WORKERS = 1000
IDLE_LEAVE_S = 1.5  # a worker with nothing in hand that has not left by then is killed
SETTLE_S = 2.0  # how long leaving waits for the database
EARLY_DEATHS = 10  # in a row, before any worker became ready: give up
EARLY_S = 1.0  # a worker that dies idle within so long of being ready died early too
BOOT_CODES = (2, 3, 4, 70)  # a worker that ends so with nothing in hand says why it can never work
CUT_CODE, GIVE_UP_CODE, INTERRUPT_CODE = 75, 70, 130
OURS = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1)


@dataclass(slots=True)
class Summary:
    """What a pool did. code: exit code.  counts: by Counter.  later: jobs left that are not due (flush)."""

    code: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * len(Counter))
    later: int = 0
    reason: str = ""


@dataclass(slots=True)
class Child:
    """A living worker."""

    pid: int
    page: Page
    told: bool = False  # asked to leave
    replaced: bool = False  # asked since its successor is ready (SIGHUP)


class Supervisor:
    """Keeps the pool as it should be: one keeper and the wanted number of workers."""

    def __init__(self, plan: Plan, *, on_tick: Callable[[list[int]], None] | None = None) -> None:
        self.plan = plan
        self.wanted = plan.workers
        self._on_tick = on_tick
        self._tally = metrics.Tally()
        http = plan.settings.http if plan.mode is Mode.WORK else None
        self._ledger = Ledger(min(2 * plan.most + 64, 2 * MOST_WORKERS + 64), counting=bool(http))
        self._http = Listener(http, Health(self._ledger, self._tally, self._look).answer) if http else None
        self._size = Size(plan.limits, plan.settings, self._ledger) if plan.limits else None
        self._workers: dict[int, Child] = {}
        self._dead: dict[int, tuple[int, int]] = {}  # page → pid, status: not settled yet
        self._keeper = 0
        self._keeper_id = 0  # of its row, for its successor to forget
        self._wire: Wire | None = None
        self._keeper_pause = 0.1
        self._keeper_at = 0.0
        self._fork_at = 0.0
        self._early = 0
        self._roll_at = 0.0  # workers born before are replaced; 0: none is to be
        self._stopping_at = 0.0
        self._cut = False
        self._cut_work = False
        self._left_at = 0.0
        self._interrupts = 0
        self._summary = Summary()
        self._started = time.monotonic()
        if plan.max_time_s:
            self.plan = replace(plan, until=self._started + plan.max_time_s)
        self._poke_read, self._poke_write = os.pipe()
        os.set_blocking(self._poke_read, False)
        os.set_blocking(self._poke_write, False)

    def run(self) -> Summary:
        """Run the pool until it is over; returns what it did."""
        names = ("TERM", "INT", "QUIT", "HUP", "TTIN", "TTOU", "USR1", "CHLD")
        self._waker = Waker(getattr(signal, f"SIG{name}") for name in names)
        running.be(pool=self.plan.name)
        title(f"supervisor {self.plan.name} [{self.plan.queue_list}]"[:200])
        log.info(
            "pool %s: %s for %s", self.plan.name, self.plan.extent, self.plan.queue_list.replace(",", ", ")
        )
        if self._http is not None:
            self._http.start(self._waker)
        try:
            while not self._finished():
                self._tally.loops += 1
                self._reap()
                self._reconcile()
                signals, ready = self._waker.wait(self._timeout())
                for number in signals:
                    self._on_signal(number)
                if self._wire is not None and self._wire.fd in ready:
                    self._hear()
                if self._http is not None:
                    self._http.turn(ready, time.monotonic())
                if self._on_tick:
                    self._on_tick(self.counts())
        finally:
            self._leave()
        return self._result()

    def counts(self) -> list[int]:
        """What all workers, past and present, have counted."""
        total = list(self._summary.counts)
        for page in self._ledger:
            total = [a + b for a, b in zip(total, page.counts(), strict=True)]
        return total

    # ── what is wanted against what lives ─────────────────────────────────────────────────────────

    def _reconcile(self) -> None:
        now = time.monotonic()
        self._watch_limits(now)
        if not self._keeper and now >= self._keeper_at and not self._left_at:
            self._fork_keeper()
        if self.plan.max_time_s and now - self._started >= self.plan.max_time_s:
            self._drain(f"{self.plan.max_time_s:g} s are over")
        if self._stopping_at:
            self._press_on(now)
            return
        missing = self.wanted + self._roll_on() - sum(not one.told for one in self._workers.values())
        while missing > 0 and now >= self._fork_at and not self._stopping_at:
            if not self._fork_worker():
                break
            missing -= 1
        for one in spare(self._workers.values(), busy_too=not self._size)[: max(0, -missing)]:
            self._dismiss(one)

    def _press_on(self, now: float) -> None:
        """See to it that a stop comes to its end."""
        for one in self._workers.values():
            if not one.told:
                self._dismiss(one)
        waited = now - self._stopping_at
        if waited > self.plan.settings.worker_stop_timeout and not self._cut:
            log.warning("jobs still run after %g s: they are cut and given back", waited)
            self._cut = True
        for one in self._workers.values():
            idle = not one.page.count or not one.page.ready
            if self._cut or (waited > IDLE_LEAVE_S and idle and now - one.page.settled > IDLE_LEAVE_S):
                self._cut_work = self._cut_work or not idle
                one.page.cut = one.page.cut or Cut.STOP
                host.kill_group(one.pid)

    def _watch_limits(self, now: float) -> None:
        """Kill what swallows its time limit or its cancellation. Here, since the supervisor never waits."""
        for one in self._workers.values():
            limits.enforce(one.page, now)

    def _roll_on(self) -> int:
        """Replace the old workers (SIGHUP), one at a time; returns how many are wanted on top: 0 or 1.

        The successor must be ready before an old one is asked to leave, and that one gone before the next successor
        is raised, however long its job takes: nobody has reckoned with more than one worker too many.
        """
        staying = [one for one in self._workers.values() if not one.told]
        old = [one for one in staying if one.page.born <= self._roll_at]
        if not old:
            self._roll_at = 0.0
        if not old or len(staying) < len(self._workers):
            return 0
        if len(staying) <= self.wanted or not all(one.page.ready for one in staying):
            return 1
        first = by_use(old)[0]
        first.replaced = True
        self._dismiss(first)
        return 0

    def _dismiss(self, one: Child) -> None:
        one.told = True
        one.page.told = 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)

    # ── forks ─────────────────────────────────────────────────────────────────────────────────────

    def _fork_worker(self) -> bool:
        done = sum(self.counts()[: Counter.SNOOZED])
        if self.plan.max_jobs:
            if self._dead:
                return False  # what they held counts too, once it is settled
            if done >= self.plan.max_jobs:
                self._drain("done")
                return False
        page = self._ledger.free()
        if page is None:
            return False
        page.clear()
        page.phase = Phase.BOOTING
        page.born = time.monotonic()
        pid = self._fork(lambda: child.worker(self.plan, page, self._poke_write, done))
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too; whoever comes first
        page.pid = pid
        self._tally.starts += 1
        self._workers[pid] = Child(pid, page)
        return True

    def _fork_keeper(self) -> None:
        ours, theirs = socket.socketpair()
        self._close_wire()
        self._wire = Wire(ours)

        def body() -> int:
            return child.keeper(self.plan, self._ledger, Wire(theirs), self._poke_read, self._keeper_id)

        self._tally.keeper_starts += 1
        self._keeper = self._fork(body)
        theirs.close()
        self._waker.watch(self._wire.fd)
        for index, (pid, status) in self._dead.items():
            self._wire.send({"dead": index, "pid": pid, "status": status})

    def _fork(self, body: Callable[[], int]) -> int:
        """Fork; the child runs `body` with default signals and leaves with its result, never returning here."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        self._be_child(body, parent)  # never returns
        raise AssertionError

    def _be_child(self, body: Callable[[], int], parent: int) -> NoReturn:
        code = 1
        try:
            self._close_wire()  # our end, inherited: held open here, its end would never reach the keeper
            if self._http is not None:
                self._http.close()
            self._waker.close()
            for number in self._waker.signals:
                # Whoever signals all of a pool at once must not end or freeze a child by what is meant for us.
                signal.signal(number, signal.SIG_IGN if number in OURS else signal.SIG_DFL)
            random.seed()
            if os.getppid() != parent:
                os._exit(0)
            code = body()
        except BaseException:
            log.exception("a child of the pool ended by an error")
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    # ── deaths ────────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        """Collect every child that has ended; children that are not ours are collected and forgotten."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._keeper:
                self._keeper_died(status)
            elif pid in self._workers:
                one = self._workers.pop(pid)
                if sys.platform == "linux":  # in kB, and of the run that was measured: only here is it reset
                    one.page.peak = used.ru_maxrss << 10
                self._worker_died(one, status)

    def _keeper_died(self, status: int) -> None:
        self._keeper = 0
        self._hear()  # its last words
        if not self._left_at:
            log.warning("the keeper ended (%s): another one is started", describe(status))
            self._keeper_at = time.monotonic() + self._keeper_pause
            self._keeper_pause = min(self._keeper_pause * 2, 10.0)

    def _worker_died(self, one: Child, status: int) -> None:
        page, now = one.page, time.monotonic()
        host.kill_group(one.pid)  # what its handlers have left running goes with it
        page.phase = Phase.LEAVING
        self._dead[page.index] = (one.pid, status)
        if self._wire is not None:
            self._wire.send({"dead": page.index, "pid": one.pid, "status": status})
        early = not page.ready or (not page.count and now - page.ready < EARLY_S)
        if not early:
            self._early = 0
        clean = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        self._tally.ready_once = self._tally.ready_once or bool(page.ready)
        self._tally.exits[_reason(one, clean=clean, early=early)] += 1
        if self._stopping_at or page.cut:
            return
        if clean:
            if page.text and not one.told:
                log.info("worker %d left: %s", one.pid, page.text)
            if self._ends_with(page) and not one.replaced:
                self._drain("done")
        elif not page.count and os.WIFEXITED(status) and os.WEXITSTATUS(status) in BOOT_CODES:
            self._cannot_start(one, os.WEXITSTATUS(status))
        elif early:
            self._died_early(one, status)
        else:
            log.warning("worker %d ended (%s)", one.pid, describe(status))
            if self.plan.mode is Mode.ONCE and page.lease:
                self._drain("its job ended the worker")

    def _ends_with(self, page: Page) -> bool:
        """True if this worker's leaving by itself ends the command."""
        if self.plan.mode is Mode.ONCE:
            return True
        # One that is to be replaced, for its size, has not run the jobs that the command is to run.
        return self.plan.max_jobs > 0 and self.wanted == 1 and not page.text.startswith("replaced")

    def _cannot_start(self, one: Child, code: int) -> None:
        if self._roll_at:
            self._stop_rolling(one.page.text)
            return
        log.error("a worker cannot start: %s", one.page.text)
        self._summary.code = code
        self._drain("a worker cannot start")

    def _stop_rolling(self, why: str) -> None:
        """Keep the old workers: their successors cannot work (SIGHUP with a broken new version)."""
        log.error("a new worker cannot start, the old ones go on: %s", why)
        self._roll_at = 0.0

    def _died_early(self, one: Child, status: int) -> None:
        if self._roll_at:
            self._stop_rolling(f"it ended at its start ({describe(status)})")
            return
        self._early += 1
        pause = min(0.1 * 2**self._early, 30.0)
        self._fork_at = time.monotonic() + pause
        log.warning(
            "worker %d ended at its start (%s), the next one in %.1f s", one.pid, describe(status), pause
        )
        if self._early >= EARLY_DEATHS:
            log.error("%d workers in a row ended at their start: giving up", self._early)
            self._summary.code = GIVE_UP_CODE
            self._drain("workers keep dying at start")

    def _hear(self) -> None:
        assert self._wire is not None
        for message in self._wire.receive():
            if "settled" in message:
                self._keeper_pause = 0.1
                if self._dead.pop(message["settled"], None) is not None:
                    page = self._ledger.pages[message["settled"]]
                    self._summary.counts = [
                        a + b for a, b in zip(self._summary.counts, page.counts(), strict=True)
                    ]
                    page.clear()
            elif "backlog" in message and self._size and not self._stopping_at:
                leaving = sum(one.told and not one.replaced for one in self._workers.values())
                self.wanted = self._size.decide(self.wanted, message["backlog"], self.counts(), leaving)
            elif "depths" in message:
                self._tally.depths, self._tally.depths_at = message["depths"], time.monotonic()
            elif "keeper" in message:
                self._keeper_id = message["keeper"]
            elif "ended" in message:
                self._summary.later = message["later"]
                self._drain(DRY)
        if self._wire.closed:
            self._waker.unwatch(self._wire.fd)

    # ── signals and the end ───────────────────────────────────────────────────────────────────────

    def _on_signal(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                self._interrupts += number == signal.SIGINT
                if self._stopping_at:
                    self._cut = True
                self._drain(number.name)
            case signal.SIGQUIT:
                self._drain(number.name)
                self._cut = True
            case signal.SIGHUP if self.plan.mode is Mode.ONCE:
                log.info("SIGHUP: the only worker leaves after its job, and is not replaced")
            case signal.SIGHUP:
                log.info("SIGHUP: replacing the workers one by one")
                self._roll_at = time.monotonic()
            case signal.SIGTTIN | signal.SIGTTOU:
                by = 1 if number == signal.SIGTTIN else -1
                if self._size:
                    self.wanted = self._size.shift(self.wanted, by)
                else:
                    self.wanted = max(1, min(self.wanted + by, MOST_WORKERS))
                    log.info("%s: %d workers", number.name, self.wanted)
            case signal.SIGUSR1:
                self._report()
            case _:
                pass

    def _drain(self, reason: str) -> None:
        if not self._stopping_at:
            self._stopping_at = time.monotonic()
            self._summary.reason = reason
            log.info("stopping: %s", reason)

    def _report(self) -> None:
        now = time.monotonic()
        for one in self._workers.values():
            page = one.page
            slot = page.current
            if slot >= 0:
                what = f"runs job {page.ids[slot]} {page.text} for {now - page.began:.1f} s, holds {page.count} in all"
            else:
                what = Phase(page.phase).name.lower()
            log.warning("worker %d (process %d): %s", page.worker, one.pid, what)

    def _finished(self) -> bool:
        if not self._stopping_at or self._workers:
            return False
        self._left_at = self._left_at or time.monotonic()
        return not self._dead or not self._keeper or time.monotonic() - self._left_at > SETTLE_S

    def _timeout(self) -> float:
        if self._stopping_at or self._roll_at:
            return 0.05
        if not self._keeper or len(self._workers) != self.wanted:
            return 0.05
        busy = any(page.phase == Phase.RUNNING for page in self._ledger)
        return 0.25 if busy or self._on_tick else 1.0

    def _leave(self) -> None:
        """Let the keeper go; it is given a moment for its last words and no more."""
        for one in self._workers.values():  # only after an error of our own
            host.kill_group(one.pid)
        if self._keeper and self._wire is not None:
            self._wire.send({"leave": True})
            until = time.monotonic() + SETTLE_S
            while time.monotonic() < until:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(self._keeper, os.WNOHANG)[0]:
                        break
                time.sleep(0.005)
            else:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(self._keeper, signal.SIGKILL)
                    os.waitpid(self._keeper, 0)
        self._close_wire()
        if self._http is not None:
            self._http.close()
        self._waker.close()

    def _close_wire(self) -> None:
        if self._wire is not None:
            with contextlib.suppress(ValueError, OSError):
                self._waker.unwatch(self._wire.fd)
            self._wire.close()

    def _look(self) -> metrics.Pool:
        """The pool now, for who asks over HTTP."""
        return metrics.Pool(
            name=self.plan.name,
            queues=self.plan.queue_list,
            version=__version__,
            wanted=self.wanted,
            workers=[(one.pid, one.page, one.told) for one in self._workers.values()],
            keeper=self._keeper,
            draining=bool(self._stopping_at),
            counts=self.counts(),
        )

    def _result(self) -> Summary:
        summary = self._summary
        summary.counts = self.counts()
        if self._cut_work and not summary.code:
            summary.code = INTERRUPT_CODE if self._interrupts > 1 else CUT_CODE
        return summary


def _reason(one: Child, *, clean: bool, early: bool) -> str:
    """Why a worker ended, as metrics count it."""
    if one.page.cut:
        return "cut"
    if clean:
        return "asked" if one.told else "replaced"
    return "early" if early else "died"


def describe(status: int) -> str:
    """A wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
