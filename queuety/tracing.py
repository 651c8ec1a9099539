"""OpenTelemetry: the trace in which a job is enqueued goes on in its runs. The one home of that library.

Nothing here imports it unless the application has: without a provider of its own nobody could see a span. So there is
no cost but a look into a dictionary where it is not used.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Span

KEY = "trace"  # in the job's `backoff`, next to what that says of its retries
LONGEST = 1024  # signs of trace state that are carried
_FIELDS = ("traceparent", "tracestate")


class Traced(Protocol):
    """A job that is about to run."""

    @property
    def id(self) -> int: ...
    @property
    def handler(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def backoff(self) -> str | None: ...


def current() -> dict[str, str] | None:
    """The current trace as a job carries it (W3C traceparent and tracestate); None: there is none."""
    if not _used():
        return None
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name: carrier[name] for name in _FIELDS if 0 < len(carrier.get(name, "")) <= LONGEST}


def carrying(backoff: str | None, found: dict[str, str]) -> str:
    """The job's `backoff` with a trace in it."""
    return json.dumps({**(json.loads(backoff) if backoff else {}), KEY: found})


class Run:
    """The span of one run."""

    def __init__(self, span: Span, token: Any) -> None:
        self._span = span
        self._token = token

    def end(self, outcome: str, error: str | None, message: str = "") -> None:
        """outcome: how it ended, in one word.  error: the type of what went wrong; None: nothing did."""
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        with suppress(Exception):  # whatever an exporter or a processor does, the run has ended
            context.detach(self._token)
            self._span.set_attribute("queuety.job.outcome", outcome)
            if error is not None:
                self._span.set_attribute("error.type", error)
                self._span.set_status(Status(StatusCode.ERROR, message[:500]))
            self._span.end()


def begin(job: Traced) -> Run | None:
    """Begin the span of a run, a child of the one in which the job was enqueued; None if nobody looks at spans."""
    if not _used():
        return None
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    with suppress(Exception):
        parent = TraceContextTextMapPropagator().extract(_carrier(job.backoff), context.Context())
        span = trace.get_tracer("queuety").start_span(
            f"process {job.queue}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "queuety",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": job.queue,
                "messaging.message.id": str(job.id),
                "queuety.job.handler": job.handler,
                "queuety.job.attempt": job.attempts,
                "queuety.job.max_attempts": job.max_attempts,
            },
        )
        return Run(span, context.attach(trace.set_span_in_context(span, parent)))
    return None


def flush(timeout_s: float) -> None:
    """Send the spans that wait: a worker leaves without what the interpreter does at its end."""
    if not _used():
        return
    from opentelemetry import trace

    send = getattr(trace.get_tracer_provider(), "force_flush", None)
    if send is not None:
        with suppress(Exception):
            send(int(timeout_s * 1000))


def _used() -> bool:
    return "opentelemetry.trace" in sys.modules


def _carrier(backoff: str | None) -> dict[str, str]:
    if not backoff or f'"{KEY}"' not in backoff:
        return {}
    found = json.loads(backoff).get(KEY)
    return found if isinstance(found, dict) else {}
