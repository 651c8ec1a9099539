"""Log lines on standard error: for people or for machines, and never a reason to fail."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from queuety.process import running
from queuety.redaction import redact_text
from queuety.texts import clean, storable

# Chatty at info, and of no use to an operator of a queue.
_QUIET = ("alembic", "sqlalchemy", "asyncio")

MOST_EXTRAS = 32  # fields of `extra={…}` that a line carries
LONGEST_EXTRA = 2000  # characters of JSON of one of them

# What every record has, which nobody gave by `extra`.
_OF_RECORDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "queuety"}
_OURS = {"time", "level", "process", "pid", "pool", "worker", "job", "handler", "queue", "attempt", "event"}
_OURS |= {"message", "exception", "stack"}

_excepthook = threading.excepthook


def configure(level: str, form: str) -> None:
    """Send all logging to standard error. level: as the setting log_level.  form: console or json.

    For machines, warnings and what ends a thread are log lines too: else they would be lines that are no JSON.
    """
    logging.raiseExceptions = False  # a reader that has gone must not cost more than its lines
    handler = _Standard()
    handler.setFormatter(_Machine() if form == "json" else _Console())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.captureWarnings(form == "json")
    threading.excepthook = _thread_ended if form == "json" else _excepthook


def configure_early(form: str | None) -> None:
    """Let mistakes that are found before the settings are known be told for machines, if that is asked for.

    form: the option, if it was given.
    """
    if (form or os.environ.get("QUEUETY_LOG_FORMAT", "")).strip() == "json":
        configure("info", "json")


def tell_machines(level: int, text: str) -> bool:
    """Write a command's own words as a line for machines, whatever the level; False if lines are for people."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Standard) and isinstance(handler.formatter, _Machine):
            said = text.removeprefix("queuety: ")
            handler.handle(logging.LogRecord("queuety.cli", level, __file__, 0, said, None, None))
            return True
    return False


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "unknown"
    logging.getLogger("queuety.thread").error(
        "thread %s ended by an error: %s",
        name,
        args.exc_type.__name__,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _said(record: logging.LogRecord) -> str:
    """The message, or why it cannot be had: arguments that do not fit, or whose text fails."""
    try:
        return storable(record.getMessage())
    except Exception as error:  # noqa: BLE001 - messages and arguments are somebody else's code
        where = f"{os.path.basename(record.pathname)}, line {record.lineno}"
        told = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return clean(
            f"a log message that cannot be formatted ({where}): {told!r}: {_fault(error)}", LONGEST_EXTRA
        )


def _fault(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - likewise
        return type(error).__name__


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of the error that a record tells of; empty if it tells of none."""
    if not record.exc_info:
        return ""
    try:
        return storable(formatter.formatException(record.exc_info))
    except Exception as error:  # noqa: BLE001 - likewise
        return f"a traceback that cannot be formatted: {_fault(error)}"


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was given by `extra={…}`: bounded, fit for JSON, and under no name of ours."""
    found: dict[str, Any] = {}
    for key, value in vars(record).items():
        if key not in _OF_RECORDS and len(found) < MOST_EXTRAS:
            name = clean(str(key), 100)
            secret = "password" in name.lower()
            found[f"extra_{name}" if name in _OURS else name] = "***" if secret else _plain(value)
    return found


def _plain(value: Any) -> Any:
    """A value that is JSON, and not much of it; the text of what is none."""
    if value is None or isinstance(value, bool):
        return value
    try:
        text = value if isinstance(value, str) else _encoded(value)
        short = clean(text, LONGEST_EXTRA)
        return short if isinstance(value, str) or len(text) > LONGEST_EXTRA else json.loads(short)
    except Exception:  # noqa: BLE001 - no JSON: a cycle, NaN, keys that are no text
        return _text(value)


def _encoded(value: Any) -> str:
    return json.dumps(value, default=_text, ensure_ascii=False, allow_nan=False)


def _text(value: Any) -> str:
    try:
        return clean(str(value), LONGEST_EXTRA)
    except Exception as error:  # noqa: BLE001 - its own code
        return f"<{type(value).__name__}: its text cannot be had, {type(error).__name__}>"


class _Standard(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now: each worker replaces its own after the fork."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        # What was printed without an end of line would make our line none that a machine can read.
        if isinstance(self.formatter, _Machine) and getattr(self.stream, "within_line", False):
            try:
                self.stream.write("\n")
            except (OSError, ValueError):
                return
        super().emit(record)


class _Console(logging.Formatter):
    """`2030-01-31 09:00:00.123 INFO    worker[4711] what happened`, one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        what = "\\n".join(_said(record).splitlines())
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname:<7} "
            f"{record.name.removeprefix('queuety.')}[{record.process}] {what}"
        )
        if trace := _traceback(self, record):
            line += "\n" + trace
        if record.stack_info:
            line += "\n" + storable(record.stack_info)
        return redact_text(line)


class _Machine(logging.Formatter):
    """One JSON object a line; times in UTC. Lines about a job, and those of its handler, carry its fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": record.name.removeprefix("queuety."),
            "pid": record.process,
            **running.fields(),
            **getattr(record, "queuety", {}),
            "message": _said(record),
        }
        if trace := _traceback(self, record):
            fields["exception"] = trace
        if record.stack_info:
            fields["stack"] = storable(record.stack_info)
        return json.dumps({**fields, **_extras(record)}, default=str)
