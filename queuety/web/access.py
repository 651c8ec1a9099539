"""Who sent a request, and whether he may do what it asks."""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

import anyio
from starlette.requests import Request

from queuety.errors import QueuetyError, UsageError
from queuety.store import tokens as stored
from queuety.units import shown
from queuety.web import tokens
from queuety.web.problems import Problem
from queuety.web.threads import Threads
from queuety.web.tokens import Role, Token

if TYPE_CHECKING:
    from queuety.app import Queuety

Answer: TypeAlias = bool | str | None
Authorize: TypeAlias = Callable[[Request, str], Answer | Awaitable[Answer]]

FRESH_S = 2.5  # for so long tokens that have been read are good; a stream asks again as often
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="queuety"'}
PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]{1,512}=*)", re.IGNORECASE)


class Access(Protocol):
    """Who somebody is: a name, unique and stable, or "" for everybody. Raises Problem for those who may not."""

    async def check(self, request: Request, needed: Role) -> str: ...

    async def still(self, request: Request, needed: Role) -> bool:
        """Whether who has been let in may stay. Asked by every open stream every few seconds."""
        ...


class Open:
    """Everybody may do everything. loopback: only who comes from this machine itself."""

    def __init__(self, *, loopback: bool = False) -> None:
        self._loopback = loopback

    async def check(self, request: Request, needed: Role) -> str:
        if self._loopback and (through := [name for name in PROXIED if name in request.headers]):
            # Or a proxy on this machine would open to everybody what is open to this machine.
            raise Problem(
                403,
                "proxied",
                f"this came through a proxy ({through[0]}), and here nobody is asked who he is",
                "start it with --auth behind a proxy",
            )
        return ""

    async def still(self, request: Request, needed: Role) -> bool:
        return True


class Asked:
    """What the mounting application says, once for each request: what it costs to ask it is not known."""

    def __init__(self, authorize: Authorize, threads: Threads) -> None:
        self._authorize = authorize
        self._threads = threads

    async def check(self, request: Request, needed: Role) -> str:
        if inspect.iscoroutinefunction(self._authorize):
            said = await self._authorize(request, str(needed))
        else:
            said = await self._threads.run(lambda: self._authorize(request, str(needed)))
            if inspect.isawaitable(said):
                said = await said
        if not said:
            raise Problem(403, "forbidden", f"you may not do what needs the role {needed}")
        return said if isinstance(said, str) else ""

    async def still(self, request: Request, needed: Role) -> bool:
        return True


class Bearers:
    """Bearer tokens: those of the setting, and those in the database, which are read again every few seconds."""

    def __init__(self, app: Queuety, threads: Threads) -> None:
        self._app = app
        self._threads = threads
        self._fixed = tokens.parse(app.settings.web_tokens)
        self._stored: list[Token] = []
        self._read_at = self._tried_at = float("-inf")
        self._reading = anyio.Lock()

    async def check(self, request: Request, needed: Role) -> str:
        given = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        if given is None:
            raise Problem(
                401, "unauthorized", "no token was sent", "Authorization: Bearer TOKEN", headers=CHALLENGE
            )
        found = tokens.find(given[1], [*self._fixed, *await self._of_database()])
        if found is None:
            raise Problem(
                401,
                "unauthorized",
                "this token is not known",
                "`queuety web token list` shows the names of those that are",
                headers={"WWW-Authenticate": CHALLENGE["WWW-Authenticate"] + ', error="invalid_token"'},
            )
        if not found.role.covers(needed):
            raise Problem(
                403,
                "forbidden",
                f"the token {found.name!r} has the role {found.role}, and this needs {needed}",
                headers={
                    "WWW-Authenticate": CHALLENGE["WWW-Authenticate"]
                    + f', error="insufficient_scope", scope="{needed}"'
                },
            )
        return found.name

    async def still(self, request: Request, needed: Role) -> bool:
        """One stream reads for all of them; while it does, or cannot, the others go by what was read last."""
        if not self._reading.locked() and time.monotonic() - self._tried_at > FRESH_S:
            with suppress(QueuetyError, Problem):
                await self._of_database()
        given = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        found = tokens.find(given[1], [*self._fixed, *self._stored]) if given else None
        return found is not None and found.role.covers(needed)

    async def _of_database(self) -> list[Token]:
        async with self._reading:  # who comes while somebody reads waits for that
            if time.monotonic() - self._read_at > FRESH_S:
                self._tried_at = time.monotonic()
                self._stored = await self._threads.run(lambda: in_database(self._app))
                self._read_at = time.monotonic()
        return self._stored


def in_database(app: Queuety) -> list[Token]:
    """The tokens of the table. Blocks."""
    with app._borrow() as conn:
        return [Token(row.name, Role(row.role), row.digest) for row in stored.listing(conn)]


class Sites:
    """Which hosts and pages a request may name. names: under which this server is known; empty: not looked at.

    strict: answer under no other name but an address or localhost, which no page's name can stand for.
    """

    def __init__(self, names: Iterable[str], *, strict: bool) -> None:
        self._names = {check_host(name) for name in names}
        self._strict = strict

    def check_host(self, request: Request) -> None:
        """Refuse a page that has its own name resolve to this server (DNS rebinding)."""
        name = _host(request.headers.get("host", ""))
        if self._strict and not (name in self._names or name == "localhost" or _address(name)):
            raise Problem(
                421, "other-host", f"nothing is served here as {shown(name)}", "allow the name: --allow-host"
            )

    def check_origin(self, request: Request) -> None:
        """Refuse what a page of another site sends: its visitor's browser would act in the visitor's name."""
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        alone = origin is None or self._same(origin, request)
        if not (alone if site is None else site in ("same-origin", "none")):
            raise Problem(
                403,
                "cross-site",
                f"this was sent by a page of another site{f' ({origin[:100]})' if origin else ''}",
                "send it from the same origin, or from your server",
            )

    def _same(self, origin: str, request: Request) -> bool:
        try:
            parts = urlsplit(origin)
            port = parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return False  # "null", of sandboxed frames and files
        host = request.headers.get("host", "").lower()
        # A proxy may have ended TLS: the scheme that we see says nothing.
        whole = parts.netloc.lower()
        return (
            whole == host
            or (port is None and host in (f"{whole}:80", f"{whole}:443"))
            or (parts.hostname in self._names)
        )


def check_host(name: str) -> str:
    """A host's name as it is compared, or UsageError."""
    found = name.strip().lower().rstrip(".")
    if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?|[0-9a-f:.]+", found):
        raise UsageError(f"{shown(name)} is not a host's name", "give names without port: queue.example.org")
    return found


def loopback(host: str) -> bool:
    """True if only this machine itself can connect to an address that is bound like that."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _host(header: str) -> str:
    """The name of a Host header, without the port and the brackets of IPv6."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".")
