"""The body of a request: bounded, in time, and strict JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from queuety.web.problems import Problem

ARRIVAL_S = 15.0  # within which a body has to arrive
DRAINED = 64 * 2**20  # bytes and
DRAINED_S = 2.0  # seconds that are taken, and dropped, of a body that is refused
_JSON = "application/json"


async def read(request: Request, limit: int, *, needed: bool) -> dict[str, Any]:
    """The JSON object in a request's body; an empty one if there is no body and none is needed.

    limit: bytes. Raises Problem: 400, 408, 413, 415 or 422.
    """
    raw = await _bytes(request, limit)
    if not raw and not needed:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind == _JSON or (kind.startswith("application/") and kind.endswith("+json"))):
        # Also what keeps a form of a foreign page out, which cannot send this type.
        raise Problem(415, "no-json", f"the body is {kind[:80] or 'of no type'}", f"Content-Type: {_JSON}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "encoded", "the body is compressed", "send it as it is")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_object)
    except UnicodeDecodeError:
        raise Problem(400, "no-json", "the body is no UTF-8") from None
    except RecursionError:
        raise Problem(400, "no-json", "the body is nested too deeply") from None
    except ValueError as error:
        raise Problem(400, "no-json", f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise Problem(422, "no-object", "the body is no JSON object", 'send {"…": …}')
    return value


class Upload:
    """What a server hands on of a request's body; knows whether all of it has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._over = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._over = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Drop what is still under way. A connection that is closed on it is reset, and the answer lost with it."""
        left = DRAINED
        with anyio.move_on_after(DRAINED_S):
            while not self._over and left > 0:
                left -= len((await self.receive()).get("body", b""))


async def _bytes(request: Request, limit: int) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(ARRIVAL_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise Problem(
            408, "late", f"the body has not arrived within {ARRIVAL_S:g} s", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Problem(400, "cut", "the connection ended within the body") from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(
        413, "too-large", f"the body is larger than {limit} bytes", headers={"Connection": "close"}
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found
