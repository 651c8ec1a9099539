"""Places in a stream, as the ids of its events name them."""

from __future__ import annotations

import re
from typing import NamedTuple

from queuety.errors import UsageError
from queuety.units import LARGEST_WHOLE, shown

# Parts: a line of the journal itself; a start or an end, which come behind it and which the job's row tells.
LINE, START, END = 0, 1, 2

_ID = re.compile(r"(\d{1,19})(?:\.([0-2]))?", re.ASCII)


class Place(NamedTuple):
    """A place in a stream: what a viewer has seen, up to and with the event of that id."""

    line: int = 0
    part: int = LINE

    @classmethod
    def parse(cls, text: str | None) -> Place:
        """The place of an event's id; None or "" is the beginning. Raises UsageError."""
        if not text:
            return cls()
        found = _ID.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[1]) > LARGEST_WHOLE:
            raise UsageError(f"{shown(text)} is no event's id", "give the event_id of an event, such as 57.0")
        return cls(int(found[1]), int(found[2] or 0))

    def __str__(self) -> str:
        return f"{self.line}.{self.part}"


class Cursor(NamedTuple):
    """How far a viewer has read.

    told: the last event that it has.  read: the last line of the journal.  line: as `read`, but the line that tells of
    an end does not count, since that takes its id from the one before.
    """

    told: Place = Place()
    line: int = 0
    read: int = 0

    @classmethod
    def after(cls, event_id: str | None) -> Cursor:
        """Where a viewer is that has everything up to this event. Raises UsageError."""
        told = Place.parse(event_id)
        return cls(told, told.line, told.line)
