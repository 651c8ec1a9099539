"""Signatures after the Standard Webhooks specification, and the secrets that they are made with."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from queuety.errors import UsageError

PREFIX = "whsec_"
LEAST, MOST = 24, 64  # bytes of a secret, as the specification has it


def new_secret() -> str:
    """A secret that nobody can guess: `whsec_…`."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(value: object) -> str:
    """A secret as it is stored, or UsageError, which never shows it."""
    if not isinstance(value, str) or not (text := value.strip()).startswith(PREFIX):
        raise UsageError(f"the secret does not begin with {PREFIX}", "leave it out, and one is made")
    try:
        length = len(_key(text))
    except (binascii.Error, ValueError):
        raise UsageError(f"the secret is not {PREFIX} and base64", "leave it out, and one is made") from None
    if not LEAST <= length <= MOST:
        raise UsageError(
            f"the secret has {length} bytes, {LEAST} to {MOST} are possible", "leave it out, and one is made"
        )
    return text


def sign(secrets_: Sequence[str], message_id: str, at: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature for each secret, the current one first.

    at: seconds since 1970, as in `webhook-timestamp`.
    Source: Standard Webhooks, "Signature scheme": HMAC-SHA256 of `id.timestamp.body`, in base64 behind `v1,`.
    """
    signed = f"{message_id}.{at}.".encode() + body
    digests = (hmac.new(_key(secret), signed, hashlib.sha256).digest() for secret in secrets_)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
