"""A job queue for Python whose queue is a PostgreSQL table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.context import Context
    from queuety.cpu.events import CpuEvent
    from queuety.cpu.pool import CpuPool
    from queuety.errors import (
        CallRefused,
        CallTimeout,
        DatabaseUnreachable,
        DuplicateJob,
        JobCancelled,
        JobFailed,
        JobNotFound,
        LeaseLost,
        PayloadError,
        Permanent,
        PoolBroken,
        PoolFull,
        PoolStopped,
        QueuetyError,
        RemoteError,
        ResultRefused,
        Retry,
        ScheduleExists,
        ScheduleNotFound,
        SchemaMismatch,
        Snooze,
        TimeLimitExceeded,
        UsageError,
        WaitTimeout,
        WebhookExists,
        WebhookNotFound,
        WorkerCrashed,
        WorkerUnavailable,
        WrongState,
    )
    from queuety.handle import JobHandle
    from queuety.handler import Handler
    from queuety.model import Event, Job, Priority, Schedule, ScheduleEvent, State, StreamEvent, Tick, Webhook
    from queuety.policy.retry import Backoff

__version__ = "0.1.0"

# Lazy, so that a supervisor can import queuety.process without any database code.
_HOMES = {
    "queuety.app": ["Queuety"],
    "queuety.context": ["Context"],
    "queuety.cpu.events": ["CpuEvent"],
    "queuety.cpu.pool": ["CpuPool"],
    "queuety.errors": [
        "CallRefused",
        "CallTimeout",
        "DatabaseUnreachable",
        "DuplicateJob",
        "JobCancelled",
        "JobFailed",
        "JobNotFound",
        "LeaseLost",
        "PayloadError",
        "Permanent",
        "PoolBroken",
        "PoolFull",
        "PoolStopped",
        "QueuetyError",
        "RemoteError",
        "ResultRefused",
        "Retry",
        "ScheduleExists",
        "ScheduleNotFound",
        "SchemaMismatch",
        "Snooze",
        "TimeLimitExceeded",
        "UsageError",
        "WaitTimeout",
        "WebhookExists",
        "WebhookNotFound",
        "WorkerCrashed",
        "WorkerUnavailable",
        "WrongState",
    ],
    "queuety.handle": ["JobHandle"],
    "queuety.handler": ["Handler"],
    "queuety.model": [
        "Event",
        "Job",
        "Priority",
        "Schedule",
        "ScheduleEvent",
        "State",
        "StreamEvent",
        "Tick",
        "Webhook",
    ],
    "queuety.policy.retry": ["Backoff"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'queuety' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


__all__ = [
    "Backoff",
    "CallRefused",
    "CallTimeout",
    "Context",
    "CpuEvent",
    "CpuPool",
    "DatabaseUnreachable",
    "DuplicateJob",
    "Event",
    "Handler",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "LeaseLost",
    "PayloadError",
    "Permanent",
    "PoolBroken",
    "PoolFull",
    "PoolStopped",
    "Priority",
    "Queuety",
    "QueuetyError",
    "RemoteError",
    "ResultRefused",
    "Retry",
    "Schedule",
    "ScheduleEvent",
    "ScheduleExists",
    "ScheduleNotFound",
    "SchemaMismatch",
    "Snooze",
    "State",
    "StreamEvent",
    "Tick",
    "TimeLimitExceeded",
    "UsageError",
    "WaitTimeout",
    "Webhook",
    "WebhookExists",
    "WebhookNotFound",
    "WorkerCrashed",
    "WorkerUnavailable",
    "WrongState",
    "__version__",
]
