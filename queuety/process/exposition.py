"""The text formats of Prometheus (0.0.4) and OpenMetrics (1.0.0): families of samples as lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True, slots=True)
class Family:
    """What one metric is. kind: counter, gauge or histogram; a counter's name ends in _total."""

    name: str
    kind: str
    help: str
    unit: str = ""  # seconds, bytes, or none: a number of things
    labels: tuple[str, ...] = ()


class Exposition:
    """Lines in one of the two formats."""

    def __init__(self, *, openmetrics: bool = False) -> None:
        self._open = openmetrics
        self._lines: list[str] = []

    def family(self, family: Family) -> None:
        """Begin a family; its samples follow."""
        name = family.name.removesuffix("_total") if self._open else family.name
        self._lines.append(f"# HELP {name} {family.help.translate(_ESCAPES)}")
        self._lines.append(f"# TYPE {name} {family.kind}")
        if self._open and family.unit and name.endswith(f"_{family.unit}"):
            self._lines.append(f"# UNIT {name} {family.unit}")

    def sample(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        shown = ""
        if labels:
            shown = (
                "{" + ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items()) + "}"
            )
        self._lines.append(f"{name}{shown} {number(value)}")

    def text(self) -> str:
        return "\n".join([*self._lines, *(["# EOF"] if self._open else []), ""])


def number(value: float) -> str:
    """A value as both formats read it: whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
