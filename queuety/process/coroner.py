"""What a dead worker's page says about its jobs."""

from __future__ import annotations

import os
import signal
import time

from queuety.model import Cancelled, ErrorInfo, Interrupted, Lost, Outcome, Returned, TimedOut
from queuety.process import host
from queuety.process.ledger import Cut, Mark, Page


class Coroner:
    """Reads pages of the dead; remembers how often the kernel's memory killer has struck."""

    def __init__(self) -> None:
        self._kills = self._kills_before = self._kills_first = host.memory_kills()

    def watch(self) -> None:
        """To be called every second or so: a kill is laid to the memory killer only if it has just struck."""
        self._kills_before, self._kills = self._kills, host.memory_kills()

    @property
    def kills(self) -> int:
        """How often the memory killer has struck since the pool began."""
        return self._kills - self._kills_first

    def outcomes(self, page: Page, status: int) -> dict[int, tuple[Outcome, float, float]]:
        """Job id → outcome, seconds after the claim when it began and ended. status: as waitpid gives it."""
        outcomes: dict[int, tuple[Outcome, float, float]] = {}
        ended = time.monotonic() - page.claimed
        for slot, job_id, mark in page.holdings():
            began = page.began - page.claimed if slot == page.current else 0.0
            match mark:
                case Mark.HELD | Mark.DROPPED:
                    outcomes[job_id] = (Interrupted(), 0.0, 0.0)
                case Mark.BEGUN:
                    outcomes[job_id] = (self._ending(page, status), max(began, 0.0), ended)
                case Mark.RETURNED:
                    outcomes[job_id] = (Returned(), 0.0, 0.0)
                case Mark.RETURNED_VALUE:
                    note = ErrorInfo("ResultNotKept", "the worker died before the result was stored")
                    outcomes[job_id] = (Returned(note=note), 0.0, 0.0)
                case Mark.ENDED:
                    # It ended in some other way, and the details died with the worker.
                    outcomes[job_id] = (Lost(self._death(page, status)), 0.0, ended)
                case Mark.SETTLED:
                    pass
        return outcomes

    def _ending(self, page: Page, status: int) -> Outcome:
        """The outcome of the job that was running when its worker died.

        A kill that was meant for the job before it costs this one nothing.
        """
        match Cut(page.cut):
            case Cut.TIME_LIMIT if not page.deadline or time.monotonic() < page.deadline:
                return Interrupted()
            case Cut.CANCEL if page.cancel != page.ids[page.current]:
                return Interrupted()
            case Cut.TIME_LIMIT:
                limit = page.deadline - page.began
                where = page.text if "\n" in page.text else None
                return TimedOut(
                    ErrorInfo("TimeLimitExceeded", f"the run was over its time limit of {limit:g} s", where)
                )
            case Cut.CANCEL:
                return Cancelled()
            case Cut.STOP:
                return Interrupted()
            case Cut.LEASE_LOST | Cut.NO:
                return Lost(self._death(page, status))

    def _death(self, page: Page, status: int) -> ErrorInfo:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = "unknown"
            text = f"the worker process was killed by signal {number} ({name})"
            if number == signal.SIGKILL and host.memory_kills() > self._kills_before:
                text += "; the kernel's memory killer ended a process at that time: most likely out of memory"
            return ErrorInfo("WorkerKilled", text)
        code = os.waitstatus_to_exitcode(status)
        return ErrorInfo(
            "WorkerLeft", f"the worker process left with exit code {code} in the middle of the job"
        )
