"""The thread of a CPU pool: gives calls to workers, watches their time, replaces those that die."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from queuety.cpu.call import Answer, Call, answer, summary
from queuety.cpu.events import CpuEvent, Listeners, log
from queuety.cpu.process import End, WorkerProcess
from queuety.cpu.trouble import Trouble
from queuety.cpu.wire import ANSWERS, Kind
from queuety.errors import CallTimeout, PoolBroken, PoolFull, PoolStopped, WorkerCrashed, WorkerUnavailable

_ARRIVE_S = 5.0  # for a call, or for the next part of a large one, to reach a worker that was ready
_LOST = 5  # workers that may die before they begin a call; then it has its end
_HELPLESS_S = 30.0  # a call waits so long while there is no worker and none can be started
_LEAVE_S = 2.0  # for an idle worker to leave by itself
_TIDY_S = 5.0  # from a worker's answer until it can be given the next call
_TICK_S = 0.5  # a dead worker is seen by its closed socket, unless a process it forked holds that open
_REAP_S = 0.01  # between two looks for a killed process


class Dispatcher:
    """All that a pool does, in one thread of its own; others only leave a note and wake it."""

    def __init__(
        self,
        processes: int,
        max_restarts: int,
        max_waiting: int | None,
        start_timeout: float,
        listeners: Listeners,
    ) -> None:
        self.processes = processes
        self.max_restarts = max_restarts
        self.max_waiting = max_waiting
        self.start_timeout = start_timeout
        self.owner = os.getpid()
        self.clerks = ThreadPoolExecutor(4, thread_name_prefix="queuety-cpu-clerk")  # they pickle
        self.ended: Future[None] = Future()
        self.crashes = 0
        self.workers: list[WorkerProcess] = []
        self.thread = threading.Thread(target=self._run, name="queuety-cpu", daemon=True)
        self._listeners = listeners
        self._corpses: list[WorkerProcess] = []
        self._trouble = Trouble()
        self._finishing: dict[int, CpuEvent] = {}  # calls whose answer is being unpickled
        self._selector = selectors.DefaultSelector()
        self._bell, self._button = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._button, False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        # The lock is held for a few instructions only: what is below it is what others leave here.
        self._lock = threading.Lock()
        self._waiting: OrderedDict[int, Call] = OrderedDict()
        self._withdrawn: list[Call] = []
        self._finished: list[tuple[Call, Answer, str | None]] = []
        self._eager = False
        self._refusal: PoolStopped | None = None  # what new calls are told
        self._kill_at: float | None = None

    def start(self) -> None:
        """Start the thread; RuntimeError, and nothing is left, if there can be none."""
        try:
            self.thread.start()
        except BaseException:
            self._close_files()
            raise

    # ── called by other threads ───────────────────────────────────────────────────────────────────────────────

    def submit(self, call: Call) -> None:
        with self._lock:
            if self._refusal is not None:
                raise _again(self._refusal)
            busy = sum(worker.call is not None for worker in self.workers)
            if self.max_waiting is not None:
                waiting = len(self._waiting) - max(0, self.processes - busy)
                if waiting >= self.max_waiting:
                    raise PoolFull(
                        f"{call.function}: {self.max_waiting} calls wait already for the CPU pool",
                        "try again later, or raise max_waiting",
                    )
            self._waiting[call.number] = call
        self._ring()

    def withdraw(self, call: Call) -> None:
        """The caller waits no longer: the call never begins, or is killed."""
        with self._lock:
            self._withdrawn.append(call)
        self._ring()

    def start_all(self) -> None:
        """Bring all workers up, and keep them up."""
        with self._lock:
            self._eager = True
        self._ring()

    def stop(self, kill_after_s: float | None) -> None:
        """Refuse what is new, fail what waits, let what runs finish; kill it after so many seconds (None: never)."""
        with self._lock:
            if self._refusal is None:
                self._refusal = PoolStopped("the CPU pool is stopped", "make a new one")
            if kill_after_s is not None:
                kill_at = time.monotonic() + kill_after_s
                self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        self._ring()

    @property
    def refusal(self) -> PoolStopped | None:
        """What new calls are told; None: they are taken."""
        return None if self._refusal is None else _again(self._refusal)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _ring(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # full: it wakes anyway; closed: it has ended
            os.write(self._button, b"!")

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._over():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - logged, and told to everybody who waits
            log.exception("the CPU pool has failed")
            with self._lock:
                self._refusal = PoolBroken(
                    f"the CPU pool has failed: {error!r}", "see the log; make a new one"
                )
        finally:
            self._close()

    def _turn(self) -> None:
        self._listen(self._pause())
        self._obey()
        self._expire()
        self._staff()
        self._assign()
        self._corpses = [corpse for corpse in self._corpses if not corpse.reaped()]

    def _over(self) -> bool:
        return self._refusal is not None and not (
            self.workers or self._corpses or self._waiting or self._finishing
        )

    def _pause(self) -> float | None:
        """Seconds until there is something to do without being told."""
        idle = any(worker.idle for worker in self.workers)
        stopping, waiting = self._refusal is not None, bool(self._waiting)
        if (idle and (waiting or stopping)) or (waiting and stopping):
            return 0.0  # a worker has answered while this turn gave it its call
        if self._corpses:
            return _REAP_S
        moments = [worker.acts_by for worker in self.workers if worker.acts_by is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        pauses = [max(0.0, moment - time.monotonic()) for moment in moments]
        if self._lacking():  # one could not be started
            pauses.append(max(0.0, self._trouble.again_at - time.monotonic()))
        if any(worker.call is not None for worker in self.workers):
            pauses.append(_TICK_S)
        return min(pauses, default=None)

    def _listen(self, pause: float | None) -> None:
        for key, _ in self._selector.select(pause):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._bell, 4096)
                continue
            worker: WorkerProcess = key.data
            if worker in self.workers:
                self._hear(worker)

    def _hear(self, worker: WorkerProcess) -> None:
        sent = worker.sent
        try:
            frames, connected = worker.talk()
            if worker.sent != sent and worker.call is not None and worker.begun_at is None:
                worker.acts_by = time.monotonic() + _ARRIVE_S
            for kind, body in frames:
                if worker in self.workers:
                    self._take(worker, kind, body)
        except ValueError as error:  # the function, or a fork of it, has written to the socket
            log.error("worker %d of the CPU pool has sent what it should not: %s", worker.pid, error)
            self._gone(worker, End(text="answered out of turn and was killed"))
            return
        if connected:
            self._attend(worker)
        elif worker in self.workers:
            self._gone(worker, worker.last_words())

    def _take(self, worker: WorkerProcess, kind: Kind, body: memoryview) -> None:
        call = worker.call
        if kind is Kind.READY and not worker.ready:
            worker.ready, worker.served, worker.acts_by = True, False, None
        elif kind is Kind.SPENT and worker.served:
            log.info(
                "worker %d of the CPU pool is replaced: a call left %s", worker.pid, bytes(body).decode()
            )
            self._remove(worker)
        elif kind is Kind.BEGUN and call is not None and worker.begun_at is None:
            worker.begun_at = time.monotonic()
            worker.acts_by = None if call.timeout_s is None else worker.begun_at + call.timeout_s
            call.packed = ()  # not needed again
            self._tell("dispatch", call, worker)
        elif kind in ANSWERS and call is not None and worker.begun_at is not None:
            self._answered(worker, call, kind, body)
        else:
            raise ValueError(f"out of turn: {kind!r}")

    def _answered(self, worker: WorkerProcess, call: Call, kind: Kind, body: memoryview) -> None:
        self._finishing[call.number] = self._event("done", call, worker)
        worker.call = worker.begun_at = None
        worker.ready, worker.served, worker.acts_by = False, True, time.monotonic() + _TIDY_S

        def finish() -> None:
            found = answer(call, kind, body)
            error = None if found.error is None else summary(kind, body) or str(found.error)
            with self._lock:
                self._finished.append((call, found, error))
            self._ring()

        try:  # in a thread: large results take their time
            self.clerks.submit(finish)
        except RuntimeError:  # there is no thread, or the interpreter is ending, and somebody still waits
            finish()

    def _finish(self) -> None:
        """Tell what came of calls: to those who listen, then to the caller."""
        with self._lock:
            finished, self._finished = self._finished, []
        for call, found, error in finished:
            event = self._finishing.pop(call.number, None)
            if event is not None:  # else: a clerk has come after all
                self._listeners.tell(replace(event, type="done" if error is None else "fail", error=error))
                call.settle(found)

    def _obey(self) -> None:
        """Do what others have asked for: tell answers, withdraw, stop."""
        self._finish()
        with self._lock:
            withdrawn, self._withdrawn = self._withdrawn, []
            refusal = self._refusal
        for call in withdrawn:
            self._withdraw(call)
        if refusal is None:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, OrderedDict()
        for call in waiting.values():
            self._fail(call, _again(refusal, f"{call.function} had not begun"))
        for worker in tuple(self.workers):
            if worker.idle:
                worker.leaving, worker.acts_by = True, time.monotonic() + _LEAVE_S
                worker.tell(Kind.QUIT)
                self._hear(worker)
            elif worker.call is None and not worker.leaving:  # it is just coming up
                self._remove(worker)

    def _withdraw(self, call: Call) -> None:
        with self._lock:
            waited = self._waiting.pop(call.number, None)
        worker = next((worker for worker in self.workers if worker.call is call), None)
        if waited is not None:
            self._tell("fail", call, None, "cancelled before it began")
        elif worker is not None:
            self._tell("fail", call, worker, "cancelled")
            self._remove(worker)

    def _expire(self) -> None:
        now = time.monotonic()
        cut = self._kill_at is not None and now >= self._kill_at
        for worker in tuple(self.workers):
            call = worker.call
            if call is not None and (end := worker.end()) is not None:
                self._dead(worker, end)
            elif call is not None and cut:
                error = PoolStopped(f"the CPU pool stopped while {call.function} ran", "give stop more time")
                self._fail(call, error, worker)
                self._remove(worker)
            elif worker.acts_by is not None and now >= worker.acts_by:
                self._late(worker)

    def _late(self, worker: WorkerProcess) -> None:
        call = worker.call
        if call is not None and call.timeout_s is not None and worker.begun_at is not None:
            error = CallTimeout(
                f"{call.function} ran longer than its limit of {call.timeout_s:g} s and was killed",
                "give it a longer timeout",
                function=call.function,
                limit_s=call.timeout_s,
            )
            self._fail(call, error, worker)
            self._remove(worker)
        elif worker.leaving or worker.served:
            self._remove(worker)
        else:
            limit = (
                f"begin a call within {_ARRIVE_S:g} s"
                if worker.ready
                else f"come up within {self.start_timeout:g} s"
            )
            log.error("worker %d of the CPU pool did not %s", worker.pid, limit)
            self._crashed(worker, End(text=f"did not {limit} and was killed"))

    def _dead(self, worker: WorkerProcess, end: End) -> None:
        """The process has ended. What it has sent before counts; its socket may be held open by one that it forked."""
        heard = worker.received
        self._hear(worker)
        if worker in self.workers and worker.received == heard:
            self._gone(worker, end)

    def _gone(self, worker: WorkerProcess, end: End) -> None:
        if worker.leaving:
            self._remove(worker)
        else:
            self._crashed(worker, end)

    def _crashed(self, worker: WorkerProcess, end: End) -> None:
        call, begun = worker.call, worker.begun_at is not None
        self._count_crash(str(end) if worker.ready else f"{end} before it could be given a call")
        self._tell("crash", call if begun else None, worker, str(end))
        self._remove(worker)  # before the caller is told, as above
        if call is not None and not begun:
            call.lost += 1
        if call is not None and (begun or call.lost >= _LOST):
            who = (
                "the process that ran"
                if begun
                else f"{call.lost} processes died before they began; the last of"
            )
            error = WorkerCrashed(
                f"{who} {call.function} {end}",
                "out of memory, perhaps" if end.signal == 9 else "",
                function=call.function,
                code=end.code,
                signal=end.signal,
            )
            self._fail(call, error, worker)
        elif call is not None:  # nothing was run: another worker may have it
            with self._lock:
                self._waiting[call.number] = call
                self._waiting.move_to_end(call.number, last=False)

    def _count_crash(self, how: str) -> None:
        """Count it before anybody is told: a caller may look at once."""
        self.crashes += 1
        if self.crashes > self.max_restarts:
            log.error("the CPU pool is broken: %d crashes", self.crashes)
            with self._lock:
                self._refusal = self._refusal or PoolBroken(
                    f"the CPU pool is broken: its workers crashed {self.crashes} times,"
                    f" and max_restarts is {self.max_restarts}; the last one {how}",
                    "look for the cause, then make a new pool",
                )

    def _staff(self) -> None:
        """Start the workers that are needed."""
        while self._lacking() and time.monotonic() >= self._trouble.again_at:
            try:
                self._employ()
            except (OSError, RuntimeError, MemoryError) as error:  # no crash: it may pass
                self._trouble.failed(error)
                log.warning("a worker of the CPU pool cannot be started now: %s", error)
            else:
                self._trouble.over()
        if self._trouble.error is not None and not self.workers:
            self._despair(self._trouble.error)

    def _employ(self) -> None:
        worker = WorkerProcess()
        try:
            self._selector.register(worker.link, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)
        except BaseException:
            worker.kill()
            self._corpses.append(worker)
            raise
        worker.acts_by = time.monotonic() + self.start_timeout
        self.workers.append(worker)

    def _despair(self, cause: BaseException) -> None:
        """Fail the calls that have waited long enough while no worker can be started."""
        latest = time.monotonic() - _HELPLESS_S
        if self._trouble.since > latest:
            return
        with self._lock:
            lost = [call for call in self._waiting.values() if call.waits_since <= latest]
            for call in lost:
                del self._waiting[call.number]
        for call in lost:
            error = WorkerUnavailable(
                f"{call.function} had not begun: no worker could be started for {_HELPLESS_S:g} s: {cause}",
                "free what is short, or call again later: the pool goes on trying",
            )
            self._fail(call, error)

    def _lacking(self) -> bool:
        """Whether there are calls for one more worker, and room for it."""
        if self._refusal is not None or len(self.workers) >= self.processes:
            return False
        free = sum(worker.call is None for worker in self.workers)
        return self._eager or len(self._waiting) > free

    def _assign(self) -> None:
        for worker in tuple(self.workers):
            if not worker.idle:
                continue
            with self._lock:
                if self._refusal is not None or not self._waiting:
                    return
                _, call = self._waiting.popitem(last=False)
                worker.call = call
            worker.acts_by = time.monotonic() + _ARRIVE_S
            worker.tell(Kind.CALL, call.number, call.function.encode(), b"\0", *call.packed)
            self._hear(worker)

    # ── one worker, one call ──────────────────────────────────────────────────────────────────────────────────

    def _attend(self, worker: WorkerProcess) -> None:
        """Be woken when it can be sent more, but only if there is more."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.sending else 0)
        if worker in self.workers and self._selector.get_key(worker.link).events != events:
            self._selector.modify(worker.link, events, worker)

    def _remove(self, worker: WorkerProcess) -> None:
        """Kill the process, if it still lives, and what it has started."""
        self._selector.unregister(worker.link)
        self.workers.remove(worker)
        worker.kill()
        self._corpses.append(worker)

    def _fail(self, call: Call, error: Exception, worker: WorkerProcess | None = None) -> None:
        self._tell("fail", call, worker, str(error))
        call.settle(Answer(error=error))

    def _tell(
        self, kind: str, call: Call | None, worker: WorkerProcess | None, error: str | None = None
    ) -> None:
        self._listeners.tell(self._event(kind, call, worker, error))

    def _event(
        self, kind: str, call: Call | None, worker: WorkerProcess | None, error: str | None = None
    ) -> CpuEvent:
        began = worker.begun_at if worker is not None and call is not None else None
        return CpuEvent(
            kind,
            call.number if call else None,
            call.function if call else None,
            worker.pid if worker else None,
            None if began is None else time.monotonic() - began,
            error,
        )

    def _close(self) -> None:
        refusal = self._refusal or PoolStopped("the CPU pool is stopped", "make a new one")
        for worker in tuple(self.workers):
            if worker.call is not None:
                self._fail(worker.call, _again(refusal), worker)
            self._remove(worker)
        for corpse in self._corpses:
            corpse.reaped(_LEAVE_S)
        with self._lock:
            waiting, self._waiting = self._waiting, OrderedDict()
        for call in waiting.values():
            self._fail(call, _again(refusal))
        self.clerks.shutdown(wait=True)
        self._finish()
        self._close_files()
        self._listeners.tell(CpuEvent("stopped"))
        self.ended.set_result(None)

    def _close_files(self) -> None:
        self._selector.close()
        with self._lock:  # a bell that is rung later would be somebody else's file
            bell, button, self._bell, self._button = self._bell, self._button, -1, -1
        os.close(bell)
        os.close(button)


def _again(refusal: PoolStopped, what: str = "") -> PoolStopped:
    """A copy for one caller: an error keeps the traceback of who raised it."""
    return type(refusal)(f"{what}: {refusal.message}" if what else refusal.message, refusal.hint)
