"""What a pool is to do: plain values that every process of it inherits over the fork."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from queuety.policy.scale import Limits

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.handler import Handler
    from queuety.settings import Settings

    Registry = Mapping[str, Handler[..., Any]]


DRY = "nothing more can be run"  # why a flush ends: nothing is due but what is left for want of time or place


class Mode(StrEnum):
    """When a pool ends by itself."""

    WORK = "work"  # never
    FLUSH = "flush"  # when nothing is due and nothing runs
    ONCE = "once"  # after one job, or at once if none is due


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pool is to do.

    url: libpq URL or keyword string.  queues: in order of precedence.  weights: of each queue;
    0, or none at all: strict.  load: imports the application; called in each worker after the fork.
    max_jobs: a lone worker ends the command after exactly so many jobs; 0: no such end.
    max_time_s: the command ends after so many seconds; 0: no such end.
    until: when that will be, in seconds of the monotonic clock; 0 until the supervisor has begun.
    limits: of an adaptive pool, which begins with their minimum; None: it has `workers` until somebody says otherwise.
    """

    url: str
    queues: tuple[str, ...]
    load: Callable[[], Queuety]
    settings: Settings
    name: str
    workers: int = 1
    mode: Mode = Mode.WORK
    max_jobs: int = 0
    max_time_s: float = 0.0
    until: float = 0.0
    preload: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)
    limits: Limits | None = None

    @property
    def most(self) -> int:
        """Workers that the pool may have."""
        return self.limits.maximum if self.limits else self.workers

    @property
    def extent(self) -> str:
        """How many workers, in words."""
        if self.limits:
            return f"{self.limits.minimum} to {self.limits.maximum} workers"
        return f"{self.workers} worker{'s' * (self.workers > 1)}"

    @property
    def queue_list(self) -> str:
        """The queues as they were named: `critical,default:3,low:1`."""
        weights = self.weights
        return ",".join(f"{name}:{weights[name]}" if weights.get(name) else name for name in self.queues)
