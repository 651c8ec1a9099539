"""Handles: what a caller keeps of a job that it wrote."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from queuety.errors import JobFailed, WaitTimeout
from queuety.model import Event, Job, State

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.watching.viewer import AsyncStream, Stream

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.5


class JobHandle:
    """One job, by its id."""

    __slots__ = ("_app", "id")

    def __init__(self, app: Queuety, job_id: int) -> None:
        self._app = app
        self.id = job_id

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id and other._app is self._app

    def __hash__(self) -> int:
        return hash(self.id)

    def job(self) -> Job:
        """The job as it stands. Raises JobNotFound if it is gone."""
        return self._app.find(self.id)

    def state(self) -> State:
        return self.job().state

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the job's end, whatever it is, and return the job. timeout: seconds; raises WaitTimeout."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK_S
        while True:
            job = self.job()
            if job.state.final:
                return job
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"job {self.id} is still {job.state} after {timeout:g} s")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_LOOK_S)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job's end and return what its handler returned.

        Raises JobFailed with the stored error if it was buried or cancelled, WaitTimeout after `timeout` seconds.
        """
        job = self.wait(timeout)
        if job.state is State.COMPLETED:
            return job.result
        error = job.error or {}
        raise JobFailed(
            f"job {self.id} was {job.state}"
            + (f": {error.get('type')}: {error.get('message')}" if error else ""),
            error=error,
        )

    def cancel(self) -> State:
        """Cancel the job; see Queuety.cancel."""
        return self._app.cancel(self.id)

    def events(self, after: int = 0) -> list[Event]:
        """The job's journal, events with an id above `after`."""
        return self._app.events(self.id, after=after)

    def stream(self, *, after: str | None = None) -> Stream:
        """Follow the job; see Queuety.stream."""
        return self._app.stream(self.id, after=after)

    def astream(self, *, after: str | None = None) -> AsyncStream:
        """Follow the job from an event loop; see Queuety.astream."""
        return self._app.astream(self.id, after=after)


class JobHandles(Sequence[JobHandle]):
    """Handles of a bulk enqueue, in the order of the payloads; eight bytes each until one is asked for."""

    def __init__(self, app: Queuety, ids: array[int]) -> None:
        self._app = app
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> JobHandle: ...
    @overload
    def __getitem__(self, place: slice) -> JobHandles: ...
    def __getitem__(self, place: int | slice) -> JobHandle | JobHandles:
        if isinstance(place, slice):
            return JobHandles(self._app, self.ids[place])
        return JobHandle(self._app, self.ids[place])

    def __iter__(self) -> Iterator[JobHandle]:
        return (JobHandle(self._app, job_id) for job_id in self.ids)

    def __repr__(self) -> str:
        return f"<{len(self)} jobs>"
