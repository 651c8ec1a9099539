"""Work for a CPU pool: a function that computes for a while, known by its name."""

from __future__ import annotations

import hashlib


def digest(text: str, rounds: int) -> str:
    """The SHA-256 of the SHA-256 of … the text, in hexadecimal."""
    value = text.encode()
    for _ in range(rounds):
        value = hashlib.sha256(value).digest()
    return value.hex()
