"""The ledger: shared memory in which each worker notes what it holds, has begun and has ended.

The supervisor maps it once, before any fork, so every process of the pool sees every page whatever dies. A page
belongs to one worker at a time. All fields are single machine words written by one side; no lock is needed:

- the worker notes a job as begun and only then reads `revoked`;
- the keeper sets `revoked`, waits (see keeper), and only then reads what is begun.

So at least one of the two sees the other, and a job that was given back is never begun.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Iterator

from queuety.process.figures import Figures, Sheet

SLOTS = 512  # jobs that one claim may hold at most
_WORDS = 64  # header, in 8-byte words
_TEXT_AT = _WORDS * 8
_TEXT_BYTES = 1536
_IDS_AT = _TEXT_AT + _TEXT_BYTES
_MARKS_AT = _IDS_AT + SLOTS * 8
PAGE = 8192
assert _MARKS_AT + SLOTS <= PAGE


class Phase(enum.IntEnum):
    """What a worker is doing."""

    FREE = 0  # nobody's page
    BOOTING = 1
    LOOKING = 2  # claiming, or polling quickly after work
    RUNNING = 3
    SLEEPING = 4
    LEAVING = 5


class Mark(enum.IntEnum):
    """How far one held job has come."""

    HELD = 0
    BEGUN = 1
    RETURNED = 2  # with nothing to store
    RETURNED_VALUE = 3
    ENDED = 4  # any other way; the details are in the worker's memory only
    SETTLED = 5
    DROPPED = 6  # not begun, to be given back


COUNTED = frozenset(
    (Mark.RETURNED, Mark.RETURNED_VALUE, Mark.ENDED, Mark.DROPPED)
)  # by the worker, as it marks it


class Cut(enum.IntEnum):
    """Why somebody of ours killed the worker."""

    NO = 0
    TIME_LIMIT = 1
    CANCEL = 2
    STOP = 3
    LEASE_LOST = 4


class Counter(enum.IntEnum):
    """What a worker counts, as offsets from the first counter."""

    COMPLETED = 0
    RETRIED = 1
    BURIED = 2
    CANCELLED = 3
    SNOOZED = 4
    GIVEN_BACK = 5
    PARKED = 6


# Words of the header. Times are seconds of the monotonic clock, which all processes of a host share.
(
    _PHASE,
    _PID,
    _WORKER,
    _LEASE,
    _COUNT,
    _CURRENT,
    _RUN,
    _REVOKED,
    _CANCEL,
    _CLAIMING,
    _COOPERATES,
    _CUT,
    _TOLD,
) = range(13)
_BEGAN, _DEADLINE, _CLAIMED, _LOOKED, _SETTLED, _EMPTY, _BORN, _READY, _CANCEL_AT = range(16, 25)
_BASE, _RESERVED, _RESIDENT, _PEAK = range(25, 29)  # memory, in bytes
_WORKED = 29
_ROOM_AT = 30
_COUNTERS = 32


def _word(index: int) -> property:
    def get(page: Page) -> int:
        return page.words[index]

    def put(page: Page, value: int) -> None:
        page.words[index] = value

    return property(get, put)


def _time(index: int) -> property:
    def get(page: Page) -> float:
        return page.times[index]

    def put(page: Page, value: float) -> None:
        page.times[index] = value

    return property(get, put)


class Page:
    """One worker's page."""

    __slots__ = ("_raw", "figures", "ids", "index", "ledger", "marks", "times", "words")

    phase = _word(_PHASE)
    pid = _word(_PID)
    worker = _word(_WORKER)  # id of the row in workers; 0 before it is registered
    lease = _word(_LEASE)
    count = _word(_COUNT)  # slots in use
    current = _word(_CURRENT)  # slot of the running job, -1: none
    run = _word(_RUN)  # grows with each begun job
    revoked = _word(_REVOKED)  # lease whose held jobs the keeper takes back
    cancel = _word(_CANCEL)  # job id that somebody asked to cancel
    claiming = _word(_CLAIMING)  # 1 while an answer to a claim may be on its way
    cooperates = _word(_COOPERATES)  # 1 if the running handler has asked should_stop()
    cut = _word(_CUT)
    told = _word(_TOLD)  # 1 once the worker is asked to leave: a handler may have made it deaf to the signal
    base = _word(_BASE)  # what the worker took when it could claim; 0: not known
    reserved = _word(_RESERVED)  # what its running job may take; negative while that is being decided
    resident = _word(_RESIDENT)  # what the worker took when that, or the measuring of the peak, began
    peak = _word(_PEAK)  # the most that a dead worker has taken; 0: not known
    began = _time(_BEGAN)
    deadline = _time(_DEADLINE)  # 0: none
    claimed = _time(_CLAIMED)
    looked = _time(_LOOKED)  # start of the last claim
    settled = _time(_SETTLED)  # end of the last settlement
    empty = _time(_EMPTY)  # start of the last claim, if it found nothing; 0: has work
    born = _time(_BORN)
    cancel_at = _time(_CANCEL_AT)  # when the keeper heard of it
    worked = _time(_WORKED)  # seconds that its jobs have taken, those in hand not yet included
    room_at = _time(_ROOM_AT)  # when a rate has room again that a job waits for; 0: not known
    ready = _time(_READY)  # when the worker could claim; 0: not yet

    def __init__(self, buffer: memoryview, index: int, ledger: Ledger) -> None:
        self.index = index
        self.ledger = ledger
        self.figures: Sheet | None = ledger.figures.sheets[index] if ledger.figures else None
        raw = buffer[index * PAGE : (index + 1) * PAGE]
        self._raw = raw
        self.words = raw[:_TEXT_AT].cast("q")
        self.times = raw[:_TEXT_AT].cast("d")
        self.ids = raw[_IDS_AT:_MARKS_AT].cast("q")
        self.marks = raw[_MARKS_AT : _MARKS_AT + SLOTS]

    def clear(self) -> None:
        """Make the page nobody's again."""
        self._raw[:] = bytes(PAGE)
        self.current = -1

    def hold(self, lease: int, ids: list[int]) -> None:
        """Note a claim: its jobs are held, none is begun."""
        count = len(ids)
        self.count = 0  # a reader never sees new ids with old marks
        self.cancel = 0  # it was meant for an earlier claim
        self.marks[:count] = bytes(count)
        for slot, job_id in enumerate(ids):
            self.ids[slot] = job_id
        self.lease = lease
        self.current = -1
        self.count = count

    def begin(self, slot: int, now: float, deadline: float) -> bool:
        """Note the job as begun; False (and held again) if the keeper has taken this lease's jobs back."""
        self.began = now
        self.deadline = deadline
        self.cooperates = 0
        self.current = slot
        self.words[_RUN] += 1
        self.marks[slot] = Mark.BEGUN
        if self.words[_REVOKED] == self.words[_LEASE]:
            self.marks[slot] = Mark.HELD
            self.current = -1
            return False
        return True

    def end(self, slot: int, mark: Mark) -> None:
        self.marks[slot] = mark
        self.current = -1
        self.deadline = 0.0

    def holdings(self) -> list[tuple[int, int, Mark]]:
        """(slot, job id, mark) of all that the last claim brought."""
        return [(slot, self.ids[slot], Mark(self.marks[slot])) for slot in range(self.count)]

    def count_one(self, counter: Counter, by: int = 1) -> None:
        self.words[_COUNTERS + counter] += by

    def counts(self) -> list[int]:
        return [self.words[_COUNTERS + counter] for counter in Counter]

    @property
    def text(self) -> str:
        """What the worker says of itself: its running handler, or why it could not start."""
        raw = bytes(self._raw[_TEXT_AT:_IDS_AT])
        return raw[2 : 2 + int.from_bytes(raw[:2], "little")].decode("utf-8", "replace")

    @text.setter
    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "replace")[: _TEXT_BYTES - 2]
        self._raw[_TEXT_AT : _TEXT_AT + 2 + len(raw)] = len(raw).to_bytes(2, "little") + raw


class Ledger:
    """All pages of a pool, and a word of the pool itself behind them. Untouched pages cost no memory.

    counting: there are figures by handler.
    """

    def __init__(self, pages: int, *, counting: bool = False) -> None:
        self.figures = Figures(pages) if counting else None
        self._map = mmap.mmap(-1, pages * PAGE + 8)
        buffer = memoryview(self._map)
        self._words = buffer[pages * PAGE :].cast("q")
        self.pages = [Page(buffer, index, self) for index in range(pages)]
        for page in self.pages:
            page.current = -1

    @property
    def declared(self) -> int:
        """What the schedules were that a worker of the pool has written last (see declared.digest); 0: none has."""
        return self._words[0]

    @declared.setter
    def declared(self, value: int) -> None:
        self._words[0] = value

    def __iter__(self) -> Iterator[Page]:
        """The pages in use."""
        return (page for page in self.pages if page.words[_PHASE])

    def free(self) -> Page | None:
        return next((page for page in self.pages if not page.words[_PHASE]), None)
