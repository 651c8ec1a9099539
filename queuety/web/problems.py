"""What goes wrong, as application/problem+json (RFC 9457): nothing of what is inside leaves with it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from queuety import errors
from queuety.plain import as_json

log = logging.getLogger("queuety.web")

MEDIA = "application/problem+json"
RETRY_S = 5  # when to come again while the database is away

# Errors of our tree are told by what a command would end with; those below otherwise.
BY_EXIT_CODE = {1: 500, 2: 422, 3: 503, 4: 503, 5: 404, 6: 409, 70: 500}
STATUS: Mapping[type[Exception], int] = {
    errors.RightsMissing: 500,  # coming again does not help
    errors.LeaseLost: 409,
    errors.WaitTimeout: 504,
    errors.CallTimeout: 504,
    errors.PoolBroken: 503,
    errors.PoolStopped: 503,
    errors.PoolFull: 503,
    errors.WorkerUnavailable: 503,
}

TITLES = {
    400: "The request cannot be read",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "There is no such method here",
    406: "There is no such representation",
    408: "The request did not arrive in time",
    409: "The state does not allow it",
    410: "It is there no more",
    413: "The request is too large",
    415: "The body is no JSON",
    421: "Another host was meant",
    422: "The request cannot be meant",
    429: "Too many streams of one client",
    431: "The head of the request is too large",
    500: "Something went wrong here",
    503: "Not now",
    504: "It took too long",
}


class Problem(Exception):
    """A request that is refused. kind: names it in `type`; the rest as in the answer."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        hint: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.hint = hint
        self.headers = dict(headers or {})
        self.more = more

    def response(self) -> Response:
        body = {
            "type": f"urn:queuety:problem:{self.kind}",
            "title": TITLES.get(self.status, "The request is refused"),
            "status": self.status,
            "detail": self.detail,
            **({"hint": self.hint} if self.hint else {}),
            **self.more,
        }
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(as_json(body), self.status, headers, MEDIA)


def busy(kind: str, detail: str, hint: str = "") -> Problem:
    """Refused for now: the same request may succeed a little later."""
    return Problem(503, kind, detail, hint, headers={"Retry-After": str(RETRY_S)})


def of(error: Exception) -> Problem:
    """The problem that tells of an error; what only its operator should read goes to the log instead."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, _words(error.status_code), _text(error), headers=error.headers)
    if not isinstance(error, errors.QueuetyError):
        log.error("a request failed", exc_info=error)
        return Problem(500, "unexpected", "an unexpected error; the log of this server tells more")
    status = status_of(type(error))
    if status < 500:
        more: dict[str, Any] = (
            {"existing": str(error.existing)} if isinstance(error, errors.DuplicateJob) else {}
        )
        return Problem(status, _kind(error), error.message, error.hint, **more)
    log.warning("%s: %s", type(error).__name__, error)  # it may name hosts, roles and tables
    if status == 503:
        return busy(_kind(error), "what the request needs cannot be used at the moment", "try again soon")
    return Problem(status, _kind(error), "the request failed; the log of this server tells more")


def status_of(kind: type[errors.QueuetyError]) -> int:
    """The status that an error of our tree is told with."""
    for one in kind.__mro__:
        if one in STATUS:
            return STATUS[one]
    return BY_EXIT_CODE.get(kind.exit_code, 500)


def _kind(error: Exception) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


def _words(status: int) -> str:
    return {404: "no-such-page", 405: "no-such-method", 401: "unauthorized", 403: "forbidden"}.get(
        status, f"http-{status}"
    )


def _text(error: HTTPException) -> str:
    return error.detail if isinstance(error.detail, str) else TITLES.get(error.status_code, "refused")
