"""How a child process talks to the bench: JSON lines out, one bare line in. Only the standard library is needed."""

from __future__ import annotations

import json
import os
import sys


def say(**answer: object) -> None:
    """Tell the parent."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def hear() -> None:
    """Wait for the parent's line; end if the parent is gone."""
    if not sys.stdin.readline():
        os._exit(0)


def wait_for_go() -> None:
    """Say that everything is prepared, and wait."""
    say(ready=True)
    hear()
