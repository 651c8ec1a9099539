"""Process titles: `ps` tells what each process of a pool does."""

from __future__ import annotations

import setproctitle


def title(text: str) -> None:
    """Show `queuety: <text>` in process listings; never a secret, never a payload."""
    setproctitle.setproctitle(f"queuety: {text}")
