"""Take passwords out of texts before anyone sees them."""

from __future__ import annotations

import re

# Up to the last @: a password that was not percent-encoded may hold any sign; too much hidden harms nobody.
_USERINFO = re.compile(r"(://[^:]*):.*@", re.DOTALL)
_PASSWORD_IN_QUERY = re.compile(r"([?&][a-z]*password=)[^&]*", re.IGNORECASE)
# As libpq reads it: quoted, or up to white space; a backslash takes the next sign along.
_KEYWORD = re.compile(
    r"(password\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|\Z)|(?:\\.|[^\s\\])*)", re.IGNORECASE | re.DOTALL
)

# In prose the URL ends at white space, unless the password itself holds some; a port is no password.
_USERINFO_IN_TEXT = re.compile(
    r"(\bpostgres(?:ql)?(?:\+\w+)?://[^:\s]*):(?:\S*@|(?!\d{1,5}(?:[/,?\s]|\Z))[^\n@]*@)"
)
_KEYWORD_IN_TEXT = re.compile(
    r"(password\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|\Z)|\"[^\"]*\"|(?:\\.|[^\s\\&'\",;)])+)",
    re.IGNORECASE | re.DOTALL,
)


def redact(url: str) -> str:
    """Hide the password of one connection URL or libpq keyword string."""
    if "://" in url:
        return _PASSWORD_IN_QUERY.sub(r"\1***", _USERINFO.sub(r"\1:***@", url))
    return _KEYWORD.sub(r"\1***", url)


def redact_text(text: str) -> str:
    """Hide the passwords of PostgreSQL URLs and of `password=` keywords inside any text."""
    if "://" in text:
        text = _USERINFO_IN_TEXT.sub(r"\1:***@", text)
    return _KEYWORD_IN_TEXT.sub(r"\1***", text)
