"""/metrics: figures of the whole queue, as the database tells them. What a pool does it tells itself."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response

from queuety.store import stats
from queuety.store.connect import Connection
from queuety.store.stats import Stats
from queuety.web.operation import Call

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
MOST_QUEUES = 200  # told by name; the rest are added up as queue="…"
OTHERS = "…"

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


async def metrics(call: Call) -> Response:
    def read(conn: Connection) -> Stats:
        return stats.stats(conn)

    lines = _lines(await call.service.look(read), call.service.room.taken)
    return Response("\n".join([*lines, ""]), media_type=MEDIA)


def _lines(found: Stats, streams: int) -> Iterator[str]:
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, float] = {}
    for place, row in enumerate(found.queues):
        name = row.name if place < MOST_QUEUES else OTHERS
        of = counts.setdefault(name, dict.fromkeys(("due", "later", "parked", "processing"), 0))
        for state in of:
            of[state] += getattr(row, state)
        oldest[name] = max(oldest.get(name, 0.0), row.oldest_due_s or 0.0)
    yield from _family("queuety_queue_jobs", "Jobs in the database that have not ended, by queue and state.")
    for name, of in counts.items():
        for state, count in of.items():
            yield f'queuety_queue_jobs{{queue="{name.translate(_ESCAPES)}",state="{state}"}} {count}'
    yield from _family("queuety_queue_oldest_due_seconds", "How long the oldest due job has waited.")
    for name, seconds in oldest.items():
        yield f'queuety_queue_oldest_due_seconds{{queue="{name.translate(_ESCAPES)}"}} {max(seconds, 0.0):.6f}'
    yield from _family("queuety_jobs_buried", "Buried jobs that are kept.")
    yield f"queuety_jobs_buried {found.buried}"
    yield from _family(
        "queuety_workers_alive", "Workers of all pools that have shown life in the last minute."
    )
    yield f"queuety_workers_alive {found.workers}"
    yield from _family("queuety_http_streams", "Streams of events that this process has open.")
    yield f"queuety_http_streams {streams}"


def _family(name: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} gauge"
