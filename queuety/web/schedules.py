"""Schedules over HTTP."""

from __future__ import annotations

from starlette.responses import Response

from queuety.errors import UsageError
from queuety.units import shown
from queuety.web import shapes
from queuety.web.jobs import answer, started
from queuety.web.operation import Call


async def listing(call: Call) -> Response:
    limit, after, handler = (call.values[name] for name in ("limit", "after", "handler"))
    found = await call.service.ask(
        lambda app: app.schedules.list(handler=handler, limit=limit + 1, after=after)
    )
    page = [shapes.schedule(one) for one in found[:limit]]
    return answer({"schedules": page, "next": page[-1]["key"] if len(found) > limit else None})


async def run(call: Call) -> Response:
    return started(call, await call.service.ask(lambda app: app.schedules.run(call.values["key"])))


async def pause(call: Call) -> Response:
    for name in call.body:
        if name != "reason":
            raise UsageError(f"a pause has no option {shown(name)}", "there is reason")
    reason = call.body.get("reason") or ""
    if not isinstance(reason, str):
        raise UsageError(f"reason={shown(reason)} is no text")
    found = await call.service.ask(lambda app: app.schedules.pause(call.values["key"], reason=reason))
    return answer(shapes.schedule(found))


async def resume(call: Call) -> Response:
    was_paused = await call.service.ask(lambda app: app.schedules.resume(call.values["key"]))
    return answer({"key": call.values["key"], "was_paused": was_paused})
