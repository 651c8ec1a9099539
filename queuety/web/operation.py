"""What a line of the route table is made of; requests are read by it, and OpenAPI is written from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from queuety.errors import UsageError
from queuety.web.problems import Problem
from queuety.web.tokens import Role

if TYPE_CHECKING:
    from queuety.web.service import Service

Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the path, the query or a header.

    read: of (text, name); raises UsageError.  many: it may come several times, and is read as a list.
    """

    name: str
    place: str
    help: str
    schema: Schema
    read: Callable[[str, str], Any]
    many: bool = False
    default: Any = None


@dataclass(slots=True)
class Call:
    """A request that has been let in and read. who: the name of whoever sent it, "" if nobody was asked."""

    request: Request
    service: Service
    who: str
    values: dict[str, Any]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    role: whoever has it, or a higher one, may.  body: name of the schema of the request's body; a body that may be
    left out has `body_needed` False.  status, answer, media: of the good answer; answer: name of its schema.
    more: further good answers, by status.  refuses: statuses of refusals that are its own; those that every
    operation has are not named.
    """

    method: str
    path: str
    id: str
    role: Role
    summary: str
    run: Callable[[Call], Awaitable[Response]]
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    body_needed: bool = True
    status: int = 200
    answer: str | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[int, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)  # further media of the good answer: their schemas
    refuses: tuple[int, ...] = ()
    cached: bool = False  # with an ETag


def read(request: Request, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """All parameters of a request, checked. Raises Problem or UsageError; an unknown one would be a silent mistake."""
    known = {one.name for one in parameters if one.place == "query"}
    for name in request.query_params:
        if name not in known:
            raise Problem(
                422,
                "unknown-parameter",
                f"there is no parameter {name[:80]!r} here",
                f"there are {', '.join(sorted(known))}" if known else "there are none",
            )
    return {one.name: _value(request, one) for one in parameters}


def _value(request: Request, one: Parameter) -> Any:
    if one.place == "path":
        return one.read(request.path_params[one.name], one.name)
    source = request.query_params if one.place == "query" else request.headers
    texts = source.getlist(one.name)
    if not texts:
        return one.default
    if one.many:
        return [one.read(text, one.name) for text in texts]
    if len(texts) > 1:
        raise UsageError(f"{one.name} is given {len(texts)} times", "give it once")
    return one.read(texts[0], one.name)
