"""`enqueue --many`: a job for each line of JSON, all or nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from queuety.cli import payloads
from queuety.cli.progress import Progress
from queuety.errors import PayloadError, QueuetyError, UsageError
from queuety.limits import LIMITS
from queuety.units import shown

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.model import NewJob

# What a line may say besides handler and payload.
_OPTIONS = (
    "queue", "priority", "delay", "at", "max_attempts", "tags", "unique", "unique_key", "unique_until", "unique_for",
    "on_duplicate", *LIMITS,
)  # fmt: skip
_KEPT = 1000  # templates kept for lines that say the same
_TOLD = 1000  # jobs between two looks at the clock


def enqueue(app: Queuety, handler: str | None, name: str, given: dict[str, Any]) -> array[int]:
    """Write the jobs of a file (`-`: standard input) and return their ids.

    handler: each line is a payload for it. None: each line names its own.  given: options for all of them.
    Raises UsageError naming the line, and nothing is written.
    """
    progress = Progress()
    with payloads.opened(name) as file:
        ids = app.write_many(_told(_jobs(_Lines(app, handler, given), file, name), progress)).ids
    progress.clear()
    return ids


def _jobs(lines: _Lines, file: IO[bytes], name: str) -> Iterator[tuple[NewJob, str]]:
    number = 0
    while raw := file.readline(lines.longest):
        number += 1
        try:
            if len(raw) >= lines.longest:
                raise PayloadError(f"it is longer than {lines.longest} bytes")
            text = payloads.decoded(raw, "it")
            if number == 1:
                text = text.removeprefix("\ufeff")
            if not text.isspace():
                yield lines.job(text)
        except QueuetyError as error:
            where = "standard input" if name == "-" else name
            raise UsageError(
                f"{where}, line {number}: {error.message}", error.hint or "nothing was written"
            ) from None


def _told(jobs: Iterator[tuple[NewJob, str]], progress: Progress) -> Iterator[tuple[NewJob, str]]:
    count = 0
    for count, job in enumerate(jobs, 1):
        if count % _TOLD == 0:
            progress.show(lambda so_far=count: f"{so_far} jobs written, not committed yet")  # type: ignore[misc]
        yield job


class _Lines:
    """Turns lines into jobs: a template for what many of them share, and the payload's text."""

    def __init__(self, app: Queuety, handler: str | None, given: dict[str, Any]) -> None:
        self._app = app
        self._handler = handler
        self._given = given
        self._limit = app.settings.payload_limit
        self.longest = 2 * self._limit + 10_000
        self._templates: dict[tuple[str, str], NewJob] = {}

    def job(self, text: str) -> tuple[NewJob, str]:
        if self._handler is not None:
            return self._job(self._handler, payloads.read(text, self._limit), {})
        values = payloads.read(text, self.longest, "line")
        handler, payload = values.pop("handler", None), values.pop("payload", {})
        if not isinstance(handler, str):
            raise UsageError("it names no handler", 'write {"handler": "…", "payload": {…}}')
        if not isinstance(payload, dict):
            raise PayloadError("the payload is not an object", 'write "payload": {"name": value, …}')
        return self._job(handler, payload, values)

    def _job(self, handler: str, payload: dict[str, Any], values: dict[str, Any]) -> tuple[NewJob, str]:
        key = (handler, repr(values) if values else "")
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _KEPT:
                self._templates.clear()
            template = self._templates[key] = self._template(handler, values)
        return template, self._app.payload_text(self._app.handlers.get(template.handler), payload)

    def _template(self, handler: str, values: dict[str, Any]) -> NewJob:
        from queuety.handler import JobOptions, new_job
        from queuety.names import check_name
        from queuety.units import instant, seconds

        for key in values:
            if key not in _OPTIONS:
                raise UsageError(
                    f"unknown key {shown(key)}", f"keys are handler, payload, {', '.join(_OPTIONS)}"
                )
        options = {**self._given, **values}
        if values.get("unique_key") is not None and "unique" not in values:
            options.pop("unique", None)  # a line's own key wins over what is said for all
        if isinstance(options.get("at"), str):
            options["at"] = instant(options["at"], what="at")
        if options.get("delay") is not None:
            options["delay"] = seconds(options["delay"], what="delay")
        name = check_name("handler", handler)
        own = self._app.handlers.get(name)
        return new_job(self._app, name, "{}", JobOptions.parse(options), own.options if own else None)
