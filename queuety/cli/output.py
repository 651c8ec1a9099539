"""What commands print: JSON for programs, aligned tables for people."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from queuety.cli import logs
from queuety.model import Priority
from queuety.plain import plain
from queuety.redaction import redact_text


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Write JSON to standard output; escaped where the encoding could not hold it."""
    wide = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(plain(value), ensure_ascii=not wide, indent=indent)
    if wide:
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """Write one line to standard output."""
    sys.stdout.write(line(text) + "\n")


def talk(text: str, *, level: int = logging.INFO) -> None:
    """Write one line to standard error: talk, not output. level: where log lines are for machines, as this is then."""
    if logs.tell_machines(level, text):
        return
    try:
        sys.stderr.write(line(redact_text(text)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens
        return


def line(text: str) -> str:
    """The text in one line, without signs that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Write rows under headers. right: headers of the columns that are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _print_rich(headers, cells, right)
        return
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    for row in [list(headers), *cells]:
        columns = [
            _padded(text, width, left=header not in right)
            for text, width, header in zip(row, widths, headers, strict=True)
        ]
        sys.stdout.write("  ".join(columns).rstrip() + "\n")


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Write `name  value` lines, aligned; nothing for a value that is None."""
    shown = [(name, _cell(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


def span(seconds: float | None) -> str:
    """A duration for people: 0.3 s, 12 s, 5 min, 3.2 h, 2.1 d."""
    if seconds is None:
        return ""
    for limit, unit, size in ((10, "s", 1), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return (
                f"{seconds / size:.1f} {unit}" if limit in (10, 172_800) else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 86_400:.1f} d"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, Priority):
        return value.name.lower()
    if isinstance(value, (dict, list)):
        return line(json.dumps(plain(value), ensure_ascii=False))
    if isinstance(value, tuple):
        return line(", ".join(map(str, value)))
    return line(str(value))


def _print_rich(headers: Sequence[str], cells: list[list[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        last = header == headers[-1]  # it gives way first on a narrow terminal
        table.add_column(header, justify="right" if header in right else "left", no_wrap=not last)
    for row in cells:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    Console(highlight=False).print(table)


def _escaped(sign: str) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(sign) or sign.encode("unicode_escape").decode("ascii")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text
