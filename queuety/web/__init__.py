"""The HTTP door, extra [web]: `create_app` to mount it, `queuety web` to run it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from queuety.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from queuety.app import Queuety

__all__ = ["create_app"]


def create_app(app: Queuety, **given: Any) -> Starlette:
    """The HTTP API of an application, as an ASGI application of its own that any other can mount.

    Somebody must say who may do what, by one of:
    authorize: a function of (request, role) that says whether whoever sent the request may do what needs this role
        ("viewer", "operator" or "admin"): False or None: no; True: yes; a text: yes, and that is his name. It may
        be async; a plain one runs in a thread. It may raise an HTTPException of its own.
    tokens: True: bearer tokens, those of `queuety web token add` and of the setting `web_tokens`.
    no_auth: True: everybody may do everything. Only behind something that asks.
    hosts: names under which it is reached. With no_auth none but these, addresses and localhost are answered,
        so that no foreign page can reach it under a name of its own.
    Raises UsageError if none of them is given, or an extra is missing.
    """
    require()
    from queuety.web.application import build

    return build(app, **given)


def require() -> None:
    """Raise UsageError naming the extra if a library that this package needs is not there."""
    missing = [name for name in ("starlette", "uvicorn", "sse_starlette") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the HTTP API needs {', '.join(missing)}, which is not installed", 'pip install "queuety[web]"'
        )
