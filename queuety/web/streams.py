"""Server-sent events of jobs."""

from __future__ import annotations

from starlette.responses import Response

from queuety.web.operation import Call

MOST_JOBS = 100


def event_id(text: str, what: str) -> str:
    return text


async def of_job(call: Call) -> Response:
    raise NotImplementedError


async def of_jobs(call: Call) -> Response:
    raise NotImplementedError
