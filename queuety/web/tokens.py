"""Bearer tokens: how they are made, kept as digests, and recognised."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from queuety.errors import UsageError
from queuety.names import check_name
from queuety.units import shown

PREFIX = "qty_"  # so that scanners for leaked secrets can know one
_ENTRY = re.compile(r"(?P<name>[^\s,]+):(?P<role>[a-z]+):sha256:(?P<digest>[0-9a-f]{64})")
ACCEPTED = (
    "give name:role:sha256:DIGEST as `queuety web token add --print` writes it, or @FILE with one a line"
)


class Role(enum.StrEnum):
    """What somebody may do; each may all that those before it may."""

    VIEWER = "viewer"  # look
    OPERATOR = "operator"  # start, cancel and retry jobs, run schedules
    ADMIN = "admin"  # pause and resume queues and schedules

    def covers(self, needed: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Token:
    """Who a token is for, and the SHA-256 of it."""

    name: str
    role: Role
    digest: bytes

    def entry(self) -> str:
        """As the setting `web_tokens` holds it."""
        return f"{self.name}:{self.role}:sha256:{self.digest.hex()}"


def make(name: str, role: str) -> tuple[str, Token]:
    """A new token and what is kept of it. 256 random bits need no slow digest: nobody can guess them."""
    secret = PREFIX + secrets.token_urlsafe(32)
    return secret, Token(check_name("token", name), check_role(role), digest(secret))


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def find(secret: str, known: Iterable[Token]) -> Token | None:
    """The token that this is. Looks at all of them, in constant time each: how long it takes tells nothing."""
    wanted, found = digest(secret), None
    for token in known:
        if hmac.compare_digest(wanted, token.digest):
            found = token
    return found


def check_role(value: str) -> Role:
    """A role by name, or UsageError."""
    try:
        return Role(value)
    except ValueError:
        raise UsageError(f"there is no role {shown(value)}", f"give one of {', '.join(Role)}") from None


def parse(setting: str | None) -> list[Token]:
    """The tokens of the setting `web_tokens`: entries apart by white space or commas, or @ and a file of them."""
    if not setting:
        return []
    source = "web_tokens"
    if setting.startswith("@"):
        source = setting[1:]
        try:
            setting = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"web_tokens: the file {shown(source)} cannot be read: {reason}", ACCEPTED
            ) from None
        setting = "\n".join(line for line in setting.splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, Token] = {}
    for number, text in enumerate(re.split(r"[\s,]+", setting.strip()), 1):
        match = _ENTRY.fullmatch(text)
        if match is None:  # not repeated: somebody may have put the token itself there
            raise UsageError(f"{source}: entry {number} is no token", ACCEPTED)
        token = Token(
            check_name("token", match["name"]), check_role(match["role"]), bytes.fromhex(match["digest"])
        )
        if token.name in found:
            raise UsageError(f"{source}: there are two tokens {shown(token.name)}", "give each its own name")
        found[token.name] = token
    return list(found.values())
