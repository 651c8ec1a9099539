"""/openapi.json: written from the route table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from queuety import __version__
from queuety.web.jobs import answer
from queuety.web.operation import Call, Operation, Parameter
from queuety.web.problems import MEDIA, TITLES
from queuety.web.schemas import SCHEMAS

# What any operation may be refused with.
ALWAYS = (401, 403, 421, 422, 431, 500, 503)
WITH_BODY = (400, 408, 413, 415)


async def serve(call: Call) -> Response:
    return answer(document(call.service.operations, call.request.scope.get("root_path", "")))


def document(operations: Iterable[Operation], root: str = "") -> dict[str, Any]:
    """The description as OpenAPI 3.1. root: the path under which the API is mounted."""
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Queuety",
            "version": __version__,
            "summary": "Start jobs, follow them, and look after their queues.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Where tokens are asked for. Each operation names the role that it needs.",
                }
            },
        },
        "security": [{"token": []}, {}],
    }


def _operation(one: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": one.id,
        "summary": one.summary,
        "description": f"Needs the role {one.role}.",
        "parameters": [_parameter(parameter) for parameter in one.parameters],
        "responses": dict(sorted(_responses(one).items())),
    }
    if one.body is not None:
        described["requestBody"] = {
            "required": one.body_needed,
            "content": {"application/json": {"schema": _ref(one.body)}},
        }
    return described


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.place,
        "description": one.help,
        "required": one.place == "path" or one.many,
        "schema": one.schema,
    }


def _responses(one: Operation) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "As asked.", **_content({one.media: one.answer, **one.also})}
    headers = {**one.headers, **({"ETag": "For If-None-Match."} if one.cached else {})}
    if headers:
        good["headers"] = {
            name: {"description": help_, "schema": {"type": "string"}} for name, help_ in headers.items()
        }
    found = {str(one.status): good}
    for status, name in one.more.items():
        found[str(status)] = {"description": "As asked." if name else "There is nothing more to come."}
        if name:
            found[str(status)] |= _content({one.media: name})
    if one.cached:
        found["304"] = {"description": "The client has it: If-None-Match."}
    refusals = {*ALWAYS, *one.refuses, *(WITH_BODY if one.body is not None else ())}
    for status in refusals:
        found[str(status)] = {"description": TITLES[status], **_content({MEDIA: "Problem"})}
    return found


def _content(media: Mapping[str, str | None]) -> dict[str, Any]:
    return {"content": {kind: {"schema": _ref(name)} for kind, name in media.items() if name}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
