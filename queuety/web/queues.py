"""Queues and workers over HTTP."""

from __future__ import annotations

from datetime import datetime

from starlette.responses import Response

from queuety.errors import UsageError
from queuety.names import check_queue
from queuety.store import queues, workers
from queuety.units import instant, shown
from queuety.web import shapes
from queuety.web.jobs import answer
from queuety.web.operation import Call


async def listing(call: Call) -> Response:
    limit, after = call.values["limit"], call.values["after"]
    rows = [row for row in await call.service.look(queues.listing) if after is None or row.name > after]
    page = [shapes.queue(row) for row in rows[:limit]]
    return answer({"queues": page, "next": page[-1]["name"] if len(rows) > limit else None})


async def pause(call: Call) -> Response:
    name = check_queue(call.values["name"])
    reason, until = _pause(call)
    await call.service.ask(lambda app: app.pause(name, reason=reason, until=until))
    return answer({"name": name, "paused": True, "paused_until": until, "reason": reason or None})


async def resume(call: Call) -> Response:
    name = check_queue(call.values["name"])
    was_paused = await call.service.ask(lambda app: app.resume(name))
    return answer({"name": name, "paused": False, "was_paused": was_paused})


async def processes(call: Call) -> Response:
    limit, after = call.values["limit"], call.values["after"]
    rows = [row for row in await call.service.look(workers.listing) if after is None or row.id > after]
    page = [shapes.worker(row) for row in rows[:limit]]
    return answer({"workers": page, "next": page[-1]["id"] if len(rows) > limit else None})


def _pause(call: Call) -> tuple[str, datetime | None]:
    for name in call.body:
        if name not in ("reason", "until"):
            raise UsageError(f"a pause has no option {shown(name)}", "options are reason and until")
    reason, until = call.body.get("reason"), call.body.get("until")
    if reason is not None and not isinstance(reason, str):
        raise UsageError(f"reason={shown(reason)} is no text")
    if until is not None and not isinstance(until, str):
        raise UsageError(f"until={shown(until)} is no text", "give 2030-01-31T09:00:00+09:00")
    return reason or "", None if until is None else instant(until, what="until")
