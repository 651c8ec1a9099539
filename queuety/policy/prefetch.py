"""How many jobs a worker claims at once."""

from __future__ import annotations


def next_size(previous: int, ran: int, busy_s: float, *, target_s: float = 0.05, cap: int = 500) -> int:
    """Jobs to claim next: as many as will run in about `target_s`, 1 to `cap`.

    previous: size of the last claim; the next is at most four times as large: one quick job proves little.
    ran:      jobs run since then; 0 measures nothing and keeps the size.
    busy_s:   seconds that they took together.
    Falls at once: a slow job means one at a time, so that others can take the rest.
    """
    if ran < 1:
        return max(1, min(previous, cap))
    fitting = int(min(target_s * ran / busy_s, cap)) if busy_s > 0 else cap
    return max(1, min(fitting, 4 * max(previous, 1), cap))
