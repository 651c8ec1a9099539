"""Parts of a result, each an event."""

from __future__ import annotations

import math
from typing import Any

from queuety import Context


def part(ctx: Context, data: dict[str, Any]) -> None:
    """Hand out a part as if the last one had been half a second ago."""
    ctx._sent_at["partial"] = -math.inf
    ctx.partial(data)
