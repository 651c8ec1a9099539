"""Load the user's application, and let it work where the command line says."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from queuety.errors import ImportFailed, UsageError
from queuety.names import quoted
from queuety.redaction import redact_text

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.settings import Settings

_SHAPE = "give module:attribute, such as shop.jobs:app"


def split(target: str) -> tuple[str, str]:
    """Take `module:attribute` apart, or raise UsageError; imports nothing."""
    module, colon, attribute = target.strip().partition(":")
    words = [*module.split("."), *attribute.split(".")]
    if not colon or module.endswith(".py") or not all(word.isidentifier() for word in words):
        raise UsageError(f"the application {quoted(target)} cannot be meant", _SHAPE)
    return module, attribute


def load(target: str, directory: Path | None = None) -> Queuety:
    """Import `module:attribute` and return the application that it names.

    directory: put in front of the import path if it is not on it; default the current one.
    Raises UsageError if the target has another form, ImportFailed for everything that can go wrong inside,
    SystemExit and syntax errors included, in one line.
    """
    module_name, attribute = split(target)
    place = str(directory or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    found: Any = _import(target, module_name, place)
    _keep_logging()
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except Exception as error:
            raise ImportFailed(
                f"application {target!r}: module {module_name!r} has no attribute {attribute!r}",
                _names(found) or _SHAPE,
            ) from error
    from queuety.app import Queuety  # here: whoever only splits a target needs none of it

    if not isinstance(found, Queuety):
        raise ImportFailed(
            f"application {target!r}: {attribute!r} is of type {type(found).__name__}, not Queuety",
            "name the object made by Queuety()",
        )
    return found


def own_settings(app: Queuety) -> dict[str, Any]:
    """The settings that the application's code gave to Queuety(…), by key."""
    settings = app.settings
    return {
        key: getattr(settings, key)
        for key, origin in settings.origins.items()
        if origin.startswith("option ")
    }


def adopt(settings: Settings, own: Mapping[str, Any]) -> Settings:
    """Settings in which the application's own stand where neither option, environment nor file spoke."""
    taken = {key: value for key, value in own.items() if settings.origin(key) == "default"}
    origins = {**settings.origins, **dict.fromkeys(taken, "application")}
    return dataclasses.replace(settings, **taken, origins=origins)


def bind(app: Queuety, settings: Settings) -> None:
    """Let the application, and the handlers that enqueue through it, work with these settings and this database."""
    app.settings = settings
    app._url = settings.database_url


def _keep_logging() -> None:
    """Undo what logging.config does by default to loggers that were there before: ours would fall silent."""
    for name, logger in logging.root.manager.loggerDict.items():
        if f"{name}.".startswith(("queuety.", "py.warnings.")) and isinstance(logger, logging.Logger):
            logger.disabled = False


def _import(target: str, name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ImportFailed(
                f"application {target!r}: there is no module {missing!r}",
                f"looked in {place} and on Python's path; start in the project's directory or set PYTHONPATH",
            ) from error
        raise ImportFailed(
            f"application {target!r}: {_cause(error)}", f"`python -c 'import {name}'` shows all of it"
        ) from error


def _cause(error: BaseException) -> str:
    """The error in one line, with the place in the user's code where it came up."""
    try:
        text = " ".join(redact_text(str(error)).split())[:300]
    except Exception as problem:  # noqa: BLE001 - somebody else's __str__
        text = f"its text cannot be had ({type(problem).__name__})"
    if isinstance(error, SystemExit):
        text = f"the module ended the process with {error.code!r}"
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{kind}{'' if isinstance(error, SyntaxError) else _place(error)}"


def _place(error: BaseException) -> str:
    place, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith("<frozen") and path not in (__file__, importlib.__file__):
            place = f" ({os.path.basename(path)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _names(module: Any) -> str:
    """A hint that names the applications of a module."""
    from queuety.app import Queuety

    if not isinstance(module, ModuleType):
        return ""
    names = [name for name, value in vars(module).items() if isinstance(value, Queuety)]
    return f"it has {module.__name__}:{names[0]}" if names else ""
