"""Where a delivery may go: URLs that can be meant, and addresses that are the world's and not our own network's."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from queuety.errors import QueuetyError, UsageError
from queuety.units import shown

LONGEST_URL = 2048
FAMILIES = (socket.AF_INET, socket.AF_INET6)
_SIGNS = re.compile(r"[!-~]+")  # ASCII that can be seen
_SHAPE = "give http(s)://host[:port]/path, percent-encoded"

_IP: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # the last four bytes are the IPv4 address that is meant
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_RELAYS = ipaddress.IPv4Network("192.88.99.0/24")  # of 6to4: the nearest one, whoever runs it


class AddressRefused(QueuetyError):
    """The receiver's host stands for an address of a private network, of this machine, or of nobody."""

    exit_code = 2


class Target(NamedTuple):
    """A URL taken apart. path: with the query, as it is sent."""

    secure: bool
    host: str
    port: int
    path: str


class Place(NamedTuple):
    """An address that was checked, ready to connect to."""

    family: int
    address: tuple[Any, ...]


def check_url(value: object) -> str:
    """Return the URL as it is stored, or raise UsageError."""
    target(value)
    assert isinstance(value, str)
    return value.strip()


def target(value: object) -> Target:
    """Take a receiver's URL apart. Raises UsageError, which shows no more than the host: the rest may be secret."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError("a webhook needs a URL", _SHAPE)
    text = value.strip()
    if len(text) > LONGEST_URL:
        raise UsageError(
            f"the URL has {len(text)} characters, at most {LONGEST_URL} are possible", "shorten it"
        )
    parts = _parts(text)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("the URL is not of the kind http://… or https://…", _SHAPE)
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the URL of host {host} holds a user or password", "leave it out: deliveries are signed"
        )
    if "#" in text:
        raise UsageError(f"the URL of host {host} holds a fragment, which is never sent", "leave it out")
    path = parts.path or "/"
    if not _SIGNS.fullmatch(path + parts.query):
        raise UsageError(f"the URL of host {host} holds signs that a request cannot", _SHAPE)
    secure = parts.scheme == "https"
    return Target(
        secure, _ascii(host), _port(parts, secure), f"{path}?{parts.query}" if parts.query else path
    )


def resolve(where: Target, *, allow_private: bool) -> list[Place]:
    """Look the host up. Connect to what this returns and to nothing else: a name may answer differently twice.

    Raises AddressRefused if any of its addresses is not a public one, unless allowed; OSError if there is none.
    """
    found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    places = [Place(family, address) for family, *_, address in found if family in FAMILIES]
    if not allow_private:
        for place in places:
            if reason := private(str(place.address[0])):
                found_as = "" if where.host == place.address[0] else f"{place.address[0]}, "
                raise AddressRefused(
                    f"{where.host} is {found_as}{reason}",
                    "give a public address, or allow private ones: --allow-private, QUEUETY_WEBHOOK_ALLOW_PRIVATE",
                )
    return places


def private(address: str) -> str:
    """Why an address is not one of the public internet; empty if it is. IPv4 inside IPv6 counts as what it means."""
    ip: _IP = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        for inner in _within(ip):
            if reason := _private(inner):
                return reason
        if ip.ipv4_mapped or ip.sixtofour or ip in _NAT64:
            return ""  # it is what it holds
    return _private(ip)


def _private(ip: _IP) -> str:
    if ip.is_loopback:
        return "the machine itself"
    if ip.is_link_local:
        return "a link-local address, where clouds keep their metadata"
    if ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return "no host's address"
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local:
        return "a private address"
    if ip in _RELAYS:
        return "a relay's address"
    return "" if ip.is_global else "a private address"


def _within(ip: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that an IPv6 one stands for."""
    found = [ip.ipv4_mapped, ip.sixtofour]
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    if ip.teredo:
        found += ip.teredo
    return [one for one in found if one is not None]


def _parts(text: str) -> SplitResult:
    if any(sign.isspace() or not sign.isprintable() for sign in text) or "\\" in text:
        raise UsageError("the URL holds spaces, backslashes or signs that cannot be seen", _SHAPE)
    try:
        return urlsplit(text)
    except ValueError as error:
        raise UsageError(f"the URL cannot be read: {error}", _SHAPE) from None


def _port(parts: SplitResult, secure: bool) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(
            f"the URL of host {parts.hostname} has a port that cannot be meant", "give 1 to 65535"
        )
    return port or (443 if secure else 80)


def _ascii(host: str) -> str:
    """A host's name as the network knows it."""
    try:
        name = host.encode("idna").decode()  # of ASCII, too: the look-up does the same, and stumbles later
    except UnicodeError:
        raise UsageError(
            f"the host {shown(host)} cannot be a name", "between its dots stand 1 to 63 signs"
        ) from None
    return host if host.isascii() else name
