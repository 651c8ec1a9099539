"""The ASGI application: the route table, and what stands before every route."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queuety.errors import UsageError
from queuety.web import body, problems
from queuety.web.access import Access, Asked, Authorize, Bearers, Open, Sites
from queuety.web.operation import Call, Operation, read
from queuety.web.problems import Problem
from queuety.web.room import Room
from queuety.web.service import THREADS, Service
from queuety.web.table import OPERATIONS
from queuety.web.threads import Threads

if TYPE_CHECKING:
    from queuety.app import Queuety

log = logging.getLogger("queuety.web")

HEAD = 32 * 1024  # bytes of path, query and headers
ENVELOPE = 64 * 1024  # of a body, besides the payload


def build(
    app: Queuety,
    *,
    authorize: Authorize | None = None,
    tokens: bool = False,
    no_auth: bool = False,
    loopback: bool = False,
    hosts: Iterable[str] = (),
) -> Starlette:
    """See queuety.web.create_app. loopback: with no_auth, refuse what came through a proxy."""
    if (authorize is not None) + bool(tokens) + bool(no_auth) != 1:
        raise UsageError(
            "nobody says who may use the HTTP API, or several do",
            "give one of authorize=FUNCTION, tokens=True and no_auth=True",
        )
    if isinstance(hosts, str):
        raise UsageError(f"hosts={hosts!r} is a text", "give a list of names")
    threads = Threads(THREADS)
    access: Access
    if authorize is not None:
        access = Asked(authorize, threads)
    elif tokens:
        access = Bearers(app, threads)
    else:
        access = Open(loopback=loopback)
    service = Service(
        app,
        access,
        Sites(hosts, strict=no_auth),
        threads,
        Room(app.settings.web_streams, app.settings.web_streams_per_client),
        OPERATIONS,
    )
    by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
    for operation in OPERATIONS:
        by_path[operation.path][operation.method] = operation
    made = Starlette(
        routes=[Route(_pattern(path), _Path(service, methods)) for path, methods in by_path.items()],
        exception_handlers={HTTPException: _no_route},
    )
    made.router.redirect_slashes = False
    return made


class _Path:
    """All methods of one path."""

    def __init__(self, service: Service, methods: Mapping[str, Operation]) -> None:
        self._service = service
        self._methods = methods
        names = {*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}
        self._allow = {"Allow": ", ".join(sorted(names))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = body.Upload(receive)
        request = Request(scope, upload.receive, send)
        answer = await self._answer(request)
        # A client that waits to be asked for its body (Expect) has sent none, nor has one whose time is up.
        if answer.status_code >= 400 and answer.status_code != 408 and "expect" not in request.headers:
            await upload.drain()
        answer.headers.setdefault("X-Content-Type-Options", "nosniff")
        answer.headers.setdefault("Cache-Control", "no-store")
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            _check_head(request)
            self._service.sites.check_host(request)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=self._allow)
            operation = self._methods.get("GET" if request.method == "HEAD" else request.method)
            if operation is None:
                raise Problem(
                    405, "no-such-method", f"{request.method[:20]} is not possible here", headers=self._allow
                )
            return await _run(self._service, operation, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must not leave
            return problems.of(error).response()


def _check_head(request: Request) -> None:
    """Refuse a head that is larger than anybody needs, whatever the server lets through."""
    size = len(request.scope["path"]) + len(request.scope.get("query_string", b""))
    size += sum(len(name) + len(value) for name, value in request.scope["headers"])
    if size > HEAD:
        raise Problem(431, "too-large", f"the head of the request has {size} bytes, at most {HEAD} are read")


async def _run(service: Service, operation: Operation, request: Request) -> Response:
    if operation.method != "GET" or operation.media == "text/event-stream":
        service.sites.check_origin(request)
    who = await service.access.check(request, operation.role)
    values = read(request, operation.parameters)
    given = {}
    if operation.body is not None:
        limit = service.app.settings.payload_limit + ENVELOPE
        given = await body.read(request, limit, needed=operation.body_needed)
    answer = await operation.run(Call(request, service, who, values, given))
    return _tagged(request, answer) if operation.cached else answer


def _tagged(request: Request, answer: Response) -> Response:
    """With an ETag; without a body if the client has just that."""
    tag = f'"{hashlib.blake2b(bytes(answer.body), digest_size=12).hexdigest()}"'
    answer.headers["ETag"] = tag
    answer.headers["Cache-Control"] = "private, no-cache"  # it may be kept, but must be asked about
    answer.headers["Vary"] = "Authorization, Cookie"
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag not in known and "*" not in known:
        return answer
    kept = {name: answer.headers[name] for name in ("ETag", "Cache-Control", "Vary")}
    return Response(status_code=304, headers=kept)


def _pattern(path: str) -> str:
    """A schedule's key may hold a slash."""
    return path.replace("{key}", "{key:path}")


async def _no_route(_request: Request, error: Exception) -> Response:
    return problems.of(error).response()
