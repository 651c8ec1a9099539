"""An application with OpenTelemetry: each span that ends is a line of JSON in the file that the environment names."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from queuety import Context, Queuety

app = Queuety()


class ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(os.environ["QUEUETY_TEST_SPANS"], "a") as file:
            for span in spans:
                context = span.get_span_context()
                assert context
                one = {
                    "name": span.name,
                    "trace": f"{context.trace_id:032x}",
                    "span": f"{context.span_id:016x}",
                    "parent": f"{span.parent.span_id:016x}" if span.parent else None,
                    "kind": span.kind.name,
                    "status": span.status.status_code.name,
                    "attributes": dict(span.attributes or {}),
                }
                file.write(json.dumps(one) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
# Slower than any test: what is exported was flushed.
provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=600_000))
if "QUEUETY_TEST_SPANS" in os.environ:
    trace.set_tracer_provider(provider)


@app.job
def once_more(ctx: Context, attempt: int) -> None:
    with trace.get_tracer("shop").start_as_current_span(f"inside {ctx.job.attempt}"):
        if ctx.job.attempt < attempt:
            raise ConnectionError("on purpose")


@app.job
async def later() -> None:
    await asyncio.sleep(0.01)
    with trace.get_tracer("shop").start_as_current_span("inside"):
        pass


@app.job
def payload_of(**payload: int) -> dict[str, int]:
    return payload
