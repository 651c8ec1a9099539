"""How long after its claim a job with a rate may still begin."""

from __future__ import annotations

SHORTEST_S = 0.01
LONGEST_S = 5.0


def next_guard(previous_s: float, turn_s: float) -> float:
    """Seconds from the call of the next claim within which what it brings must begin, or be given back.

    A start counts in its window until so long after the claim, because nobody knows better when it happens: so no
    window ever holds too many, and each place in it comes back so much later.
    previous_s: the guard of the last claim.  turn_s: how long that claim took.
    Rises at once when the database answers slowly, else every job would come too late; falls slowly.
    """
    return min(max(SHORTEST_S, 3 * turn_s, 0.9 * previous_s), LONGEST_S)
