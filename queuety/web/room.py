"""Room for streams: so many in all, so many of one client."""

from __future__ import annotations

from collections import Counter

from queuety.web.problems import Problem, busy


class Room:
    """Counts the streams that are open. Used in one event loop only, so that it needs no lock."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._of.total()

    def enter(self, client: str) -> None:
        """Take a place. Raises Problem: 429 if this client has all of his, 503 if there is none left."""
        if self._of[client] >= self._most_of_one:
            raise Problem(
                429,
                "too-many-streams",
                f"this client has {self._most_of_one} streams open, as many as one may",
                "close some, or follow several jobs with one: /api/events?job=…&job=…",
                headers={"Retry-After": "5"},
            )
        if self.taken >= self._most:
            raise busy("too-many-streams", f"{self._most} streams are open, as many as there may be")
        self._of[client] += 1

    def leave(self, client: str) -> None:
        self._of[client] -= 1
        if self._of[client] <= 0:
            del self._of[client]
