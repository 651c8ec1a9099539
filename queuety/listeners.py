"""The callbacks that an application has for what becomes of its schedules' ticks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from queuety.errors import UsageError
from queuety.model import ScheduleEvent

EVENTS = ("run", "skip", "done", "fail")

Callback = Callable[[ScheduleEvent], object]


class Listeners:
    """Callbacks by kind of event, in the order of their registration."""

    def __init__(self) -> None:
        self._of: dict[str, list[Callback]] = {kind: [] for kind in EVENTS}

    def add(self, kinds: Sequence[str], callback: Callback) -> None:
        """Register a callback; no kinds: of all events. Raises UsageError."""
        check_kinds(kinds)
        if not callable(callback):
            raise UsageError(f"{callback!r} is not callable", 'decorate a function: @app.on_schedule("fail")')
        for kind in dict.fromkeys(kinds or EVENTS):
            self._of[kind].append(callback)

    def of(self, kind: str) -> Sequence[Callback]:
        return tuple(self._of[kind])

    def __bool__(self) -> bool:
        return any(self._of.values())


def check_kinds(kinds: Sequence[object]) -> None:
    """Raise UsageError unless each is the name of an event."""
    for kind in kinds:
        if kind not in EVENTS:
            near = difflib.get_close_matches(str(kind), EVENTS, 1)
            raise UsageError(
                f"schedules have no event {kind!r}",
                f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}",
            )
