"""The lanes that a claim walks: one queue at one priority each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from queuety.model import Priority
from queuety.store.statements import array, texts

if TYPE_CHECKING:
    from queuety.store.claims import Claimed

FRONT = float("-inf")
LARGEST_CAP = 2**31 - 1


class Lanes:
    """The lanes of a queue list in claim order, each with the cursor where the last claim ended.

    The cursor spares a claim the dead index entries of jobs that are settled already. What became claimable
    behind it is found when the claim starts from the front again: see `rewind`.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._pairs = [(queue, int(level)) for queue in queues for level in Priority]
        self._place = {pair: index for index, pair in enumerate(self._pairs)}
        self._at = [FRONT] * len(self._pairs)
        self._id = [0] * len(self._pairs)
        self.order_of_queues = texts(queues)
        self.at_front = True
        self.arrange([(queues, LARGEST_CAP)])

    def arrange(self, lines: Sequence[tuple[Sequence[str], int]]) -> None:
        """Present the lanes line by line from now on. lines: the queues of each, and the most it may give.

        Each queue is in one line; the cursors stay with their lanes.
        """
        self._shown = [
            self._place[queue, level] for queues, _ in lines for queue in queues for level in Priority
        ]
        self.names = texts([self._pairs[place][0] for place in self._shown])
        self.priorities = array([self._pairs[place][1] for place in self._shown])
        self._lines = array(
            [
                number
                for number, (queues, _) in enumerate(lines, 1)
                for _ in range(len(queues) * len(Priority))
            ]
        )
        self._caps = array([cap for _, cap in lines])

    def rewind(self) -> None:
        """Let the next claim start from the front of every lane."""
        if not self.at_front:
            self._at = [FRONT] * len(self._at)
            self._id = [0] * len(self._id)
            self.at_front = True

    def values(self) -> dict[str, str]:
        """The lanes as parameters of a claim."""
        return {
            "queues": self.names,
            "priorities": self.priorities,
            "after_at": array([self._at[place] for place in self._shown]).replace("inf", "Infinity"),
            "after_id": array([self._id[place] for place in self._shown]),
            "lines": self._lines,
            "caps": self._caps,
        }

    def order(self, jobs: list[Claimed]) -> list[Claimed]:
        """Sort a claim by place in the queue list, priority, due time and id, and advance the cursors past it."""
        place = self._place
        jobs.sort(key=lambda job: (place[job.queue, job.priority], job.available_at, job.id))
        last: dict[int, Claimed] = {place[job.queue, job.priority]: job for job in jobs}
        for index, job in last.items():
            self._at[index], self._id[index] = job.available_at, job.id
            self.at_front = False
        return jobs
