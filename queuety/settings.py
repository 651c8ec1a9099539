"""One registry of settings: CLI options, environment names, file keys and the documentation come from it.

Order: option, environment, file, default. The file is `queuety.toml` (keys at the top) or `[tool.queuety]` in
pyproject.toml, the nearest one on the way from the directory to the root.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from queuety.errors import UsageError
from queuety.names import check_name
from queuety.redaction import redact
from queuety.units import (
    instant,
    seconds,
    seconds_text,
    shown,
    size,
    size_text,
    switch,
    whole,
)

__all__ = [
    "SETTINGS",
    "Setting",
    "Settings",
    "instant",
    "redact",
    "seconds",
    "seconds_text",
    "size",
    "size_text",
    "switch",
    "whole",
]

MB = 1024 * 1024
DAY_S = 86_400.0
BUDGETS_ACCEPTED = 'give names and whole numbers of cost units: {"mail": 10, "reports": 2}'

ADDRESS_ACCEPTED = "give host:port, such as 127.0.0.1:9191, :9191 for all addresses or [::1]:9191, or off"

_HOST = re.compile(r"[0-9A-Za-z.:_%-]*")

# Read by other parts than this one, so not unknown.
ELSEWHERE = ("QUEUETY_DATA_DIR", "QUEUETY_PG_BIN", "QUEUETY_TEST_")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as every door shows it.

    key:      attribute of `Settings` and key in the file.
    kind:     text, url, zone, choice, seconds, size, whole, switch, budgets or address.
    default, minimum, maximum: in SI units (seconds, bytes) or counts.
    unit:     bytes, or seconds, that a bare number of kind `size`, or `seconds`, counts.
    option:   the long CLI option.
    """

    key: str
    kind: str
    default: Any
    help: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    unit: float = 1
    option: str = ""

    @property
    def name(self) -> str:
        """The environment variable."""
        return "QUEUETY_" + self.key.upper()

    def read(self, value: object) -> Any:
        """Turn text or a number into this setting's value, or raise UsageError."""
        if self.kind == "seconds":
            return seconds(value, unit=self.unit, minimum=self.minimum, maximum=self.maximum)
        if self.kind == "size":
            return size(value, unit=int(self.unit), minimum=int(self.minimum), maximum=int(self.maximum))
        if self.kind == "whole":
            return whole(value, minimum=int(self.minimum), maximum=int(self.maximum))
        if self.kind == "switch":
            return switch(value)
        if self.kind == "budgets":
            return _budgets(value)
        if self.kind == "address":
            return _address(value)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise UsageError(f"{self.show(value)} is not a text", "give a text that is not empty")
        if self.kind == "choice":
            return self._choice(value.strip().lower())
        return value.strip()

    def show(self, value: object) -> str:
        """Write a value for people, without its secrets; `read` understands all but a redacted one."""
        if value is None:
            return ""
        if self.kind == "url":
            return redact(value) if isinstance(value, str) else "***"
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, Mapping):
            return json.dumps(dict(value), ensure_ascii=False)
        if self.kind == "seconds" and isinstance(value, (int, float)):
            return seconds_text(value)
        if self.kind == "size" and isinstance(value, (int, float)):
            return size_text(value)
        return str(value)

    def _choice(self, value: str) -> str:
        if value not in self.choices:
            raise UsageError(f"{shown(value)} is not a choice", f"give one of {', '.join(self.choices)}")
        return value


def _budgets(value: object) -> Mapping[str, int]:
    """Cost units by name, from a JSON object or a table of the file."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UsageError(f"{shown(value)} is not JSON: {error}", BUDGETS_ACCEPTED) from None
    if not isinstance(value, Mapping):
        raise UsageError(f"{shown(value)} is no JSON object", BUDGETS_ACCEPTED)
    return {
        check_name("queue or group", name): whole(
            units, maximum=1_000_000, what=f"the budget of {shown(name)}"
        )
        for name, units in value.items()
    }


def _address(value: object) -> str | None:
    """`host:port` as it was given, checked; None for off."""
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() in ("off", "false", "no", "0"):
        return None
    host, colon, port = text.rpartition(":")
    whole = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not whole or not _HOST.fullmatch(bare) or (":" in bare and host == bare):
        raise UsageError(f"{shown(value)} is no address", ADDRESS_ACCEPTED)
    return text


def _setting(kind: str, default: Any, text: str, **rest: Any) -> Any:
    private = kind == "url"  # A printed Settings must not show a password.
    return field(default=default, repr=not private, metadata={"kind": kind, "help": text, **rest})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, read and checked: seconds as float, sizes in bytes. `Settings()` holds the defaults."""

    database_url: str | None = _setting(
        "url",
        None,
        "Where the queue lives: a libpq URL or keyword string. Without it: the embedded PostgreSQL.",
    )
    app: str | None = _setting("text", None, "The application, as module:attribute.")
    worker_sleep: float = _setting(
        "seconds",
        1.0,
        "Longest wait between two looks at an empty queue.",
        minimum=0.01,
        maximum=3600,
        option="--sleep",
    )
    worker_max_jobs: int = _setting(
        "whole",
        1000,
        "A worker is replaced after that many jobs; 0 = never.",
        maximum=10**12,
        option="--max-jobs",
    )
    worker_min_age: float = _setting(
        "seconds",
        60.0,
        "Youngest age at which a worker is replaced for its number of jobs.",
        maximum=365 * DAY_S,
        option="--min-age",
    )
    worker_max_memory: int = _setting(
        "size",
        128 * MB,
        "A worker larger than this is replaced; if the application alone is larger, its own size + 128 MB. "
        "A bare number counts MB; 0 = never.",
        maximum=2**50,
        unit=MB,
        option="--max-memory",
    )
    worker_stop_timeout: float = _setting(
        "seconds", 30.0, "How long a drain may take.", maximum=7 * DAY_S, option="--stop-timeout"
    )
    worker_pool_scale_interval: float = _setting(
        "seconds",
        1.0,
        "How often the size of an adaptive pool is reconsidered.",
        minimum=0.1,
        maximum=3600,
        option="--scale-interval",
    )
    worker_pool_idle_grace: float = _setting(
        "seconds",
        15.0,
        "A worker of an adaptive pool that has not been needed for so long leaves.",
        maximum=DAY_S,
        option="--idle-grace",
    )
    stale_timeout: float = _setting(
        "seconds",
        60.0,
        "Without a sign of life for this long, a worker's jobs are recovered.",
        minimum=1,
        maximum=DAY_S,
    )
    max_execution_time: float = _setting(
        "seconds", 300.0, "A run's time limit unless the job says otherwise; 0 = none.", maximum=365 * DAY_S
    )
    max_attempts: int = _setting(
        "whole", 3, "How often a job is started at most, unless it says otherwise.", minimum=1, maximum=1000
    )
    retry_backoff: Literal["exponential", "linear", "fixed"] = _setting(
        "choice",
        "exponential",
        "How the wait grows from one attempt to the next.",
        choices=("exponential", "linear", "fixed"),
    )
    unknown_handler_grace: float = _setting(
        "seconds",
        600.0,
        "A job whose handler this worker lacks is left to others for so long, then buried with that reason.",
        maximum=365 * DAY_S,
    )
    resource_admission: bool = _setting(
        "switch", True, "Begin a job only where its handler's recent profile says that there is room for it."
    )
    resource_profile_window_minutes: float = _setting(
        "seconds",
        3600.0,
        "How far back a handler's profile looks. A bare number counts minutes.",
        minimum=60,
        maximum=7 * DAY_S,
        unit=60,
    )
    resource_profile_ttl: float = _setting(
        "seconds", 60.0, "How long a worker trusts a profile that it has read.", maximum=DAY_S
    )
    resource_memory_headroom_mb: int = _setting(
        "size",
        16 * MB,
        "Kept free inside the worker's own limit. A bare number counts MB.",
        maximum=2**50,
        unit=MB,
    )
    resource_system_memory_awareness: bool = _setting(
        "switch", True, "Whether the container's memory, or the host's, is looked at."
    )
    resource_system_memory_headroom_mb: int = _setting(
        "size",
        128 * MB,
        "Kept free of the container's memory, or the host's. A bare number counts MB.",
        maximum=2**50,
        unit=MB,
    )
    resource_time_headroom_ms: float = _setting(
        "seconds",
        0.5,
        "Kept free at the end of a run with --max-time. A bare number counts milliseconds.",
        maximum=DAY_S,
        unit=0.001,
    )
    resource_queue_cost_budgets: Mapping[str, int] | None = _setting(
        "budgets",
        None,
        "Cost units of each queue that may run at once over all hosts, as a JSON object: name to units. What is set "
        "in the database wins; give it to all pools alike.",
    )
    resource_group_cost_budgets: Mapping[str, int] | None = _setting(
        "budgets", None, "The same for concurrency groups."
    )
    timezone: str | None = _setting(
        "zone", None, "The zone of cron schedules that name none, as an IANA name; without it UTC."
    )
    webhook_timeout: float = _setting(
        "seconds",
        15.0,
        "Longest time that a webhook's receiver may take for one delivery.",
        minimum=1,
        maximum=300,
    )
    webhook_allow_private: bool = _setting(
        "switch",
        False,
        "Whether webhooks may go to private, loopback and link-local addresses. Each may be allowed to by itself.",
    )
    retention_days: int = _setting(
        "whole", 7, "Days that finished jobs are kept; 0 = for ever.", maximum=36_500
    )
    buried_retention_days: int = _setting(
        "whole", 7, "Days that buried jobs are kept; 0 = for ever.", maximum=36_500
    )
    log_retention_days: int = _setting("whole", 7, "Days that events are kept; 0 = for ever.", maximum=36_500)
    result_limit: int = _setting(
        "size", MB, "Largest result that is kept, as JSON text.", minimum=16, maximum=256 * MB
    )
    payload_limit: int = _setting("size", MB, "Largest payload, as JSON text.", minimum=16, maximum=256 * MB)
    http: str | None = _setting(
        "address",
        None,
        "Where `work` answers /livez /readyz /startupz /metrics: 127.0.0.1:9191, or :9191 for all addresses.",
    )
    web_host: str = _setting(
        "text",
        "127.0.0.1",
        "The address that `queuety web` listens on. Any but loopback needs tokens.",
        option="--host",
    )
    web_port: int = _setting(
        "whole", 8811, "The port that `queuety web` listens on; 0 = any.", maximum=65_535, option="--port"
    )
    web_root_path: str | None = _setting(
        "text",
        None,
        "The path under which a proxy serves the HTTP API, if it takes it away before it passes requests on.",
        option="--root-path",
    )
    web_auth: bool = _setting(
        "switch", False, "Ask for tokens on loopback, too: needed behind a proxy.", option="--auth"
    )
    web_tokens: str | None = _setting(
        "text",
        None,
        "Bearer tokens besides those in the database: entries name:role:sha256:DIGEST apart by commas "
        "or spaces, or @FILE with one a line.",
        option="--tokens",
    )
    web_allow_hosts: str | None = _setting(
        "text",
        None,
        "Names, apart by commas, under which the HTTP API is reached, where no tokens are asked for or a proxy "
        "changes the Host header.",
        option="--allow-host",
    )
    web_streams: int = _setting(
        "whole", 1000, "Most streams of events that are open at a time.", minimum=1, maximum=100_000
    )
    web_streams_per_client: int = _setting(
        "whole",
        100,
        "Most streams of one client: a token's, or else an address's.",
        minimum=1,
        maximum=100_000,
    )
    web_idempotency_window: float = _setting(
        "seconds", DAY_S, "How long an Idempotency-Key is remembered.", minimum=60, maximum=365 * DAY_S
    )
    log_level: str = _setting(
        "choice", "info", "What is logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "choice", "console", "Log lines for people or for machines.", choices=("console", "json")
    )

    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def load(
        cls,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Settings:
        """Read all settings and check every value, wherever it comes from.

        options:   by key; None means not given.
        environ:   default `os.environ`; an empty variable counts as not set.
        directory: where the search for the file begins; default the current one.
        Raises UsageError for a bad value, an unknown option or file key, or an unreadable file. An unknown
        environment variable only adds to `.warnings`: it may belong to another version.
        """
        environ = os.environ if environ is None else environ
        given = {key: value for key, value in (options or {}).items() if value is not None}
        _refuse_unknown(given, "option")
        path, keys = _file(directory)
        _refuse_unknown(keys, f"key in {path}")

        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for setting in SETTINGS:
            for value, origin in _candidates(setting, given, environ, keys, path):
                values[setting.key] = _checked(setting, value, origin)
                origins[setting.key] = origin
                break
        return cls(**values, origins=origins, warnings=tuple(_unknown_variables(environ)))

    def origin(self, key: str) -> str:
        """Say where a setting's value comes from: `option --x`, `environment X`, `file PATH` or `default`."""
        return self.origins.get(_find(key).key, "default")

    def show(self, key: str) -> str:
        """Write a setting's value for people, without its secrets; empty if there is none."""
        setting = _find(key)
        return setting.show(getattr(self, setting.key))


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(key=f.name, default=f.default, **{"option": "--" + f.name.replace("_", "-"), **f.metadata})
    for f in fields(Settings)
    if f.metadata
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def _find(key: str) -> Setting:
    if key not in _BY_KEY:
        _refuse_unknown([key], "setting")
    return _BY_KEY[key]


def _refuse_unknown(keys: Iterable[object], where: str) -> None:
    for key in keys:
        if key not in _BY_KEY:
            raise UsageError(f"unknown {where}: {shown(key)}", _suggestion(str(key), _BY_KEY))


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib  # here: only a mistake needs it

    known = list(known)
    bare = name.lower().replace("-", "_").removeprefix("queuety_")
    close = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(bare, known, 1)
    return f"did you mean {close[0]}?" if close else "`queuety config show` lists all settings"


def _candidates(
    setting: Setting,
    options: Mapping[str, object],
    environ: Mapping[str, str],
    keys: Mapping[str, object],
    path: Path | None,
) -> Iterable[tuple[object, str]]:
    if setting.key in options:
        yield options[setting.key], f"option {setting.option}"
    names = [setting.name, "DATABASE_URL"] if setting.key == "database_url" else [setting.name]
    for name in names:
        # An empty zone is no zone: schedules that tick in UTC instead would be a surprise.
        if environ.get(name) or (setting.kind == "zone" and name in environ):
            yield environ[name], f"environment {name}"
    if setting.key in keys:
        yield keys[setting.key], f"file {path}"


def _checked(setting: Setting, value: object, origin: str) -> Any:
    try:
        return setting.read(value)
    except UsageError as error:
        # A wrong URL may still hold the password: never show it as it is.
        text = setting.show(value) if setting.kind == "url" else shown(value)
        reason = error.message.removeprefix(text).strip()
        raise UsageError(f"{setting.key} = {text} ({origin}): {reason}", error.hint) from None


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[str]:
    names = [setting.name for setting in SETTINGS]
    for name in sorted(environ):
        if name.startswith("QUEUETY_") and name not in names and not name.startswith(ELSEWHERE):
            yield f"environment variable {name} is not a setting of this version: {_suggestion(name, names)}"


def _file(directory: Path | None) -> tuple[Path | None, Mapping[str, object]]:
    """The nearest file with settings, and its keys."""
    try:
        start = (directory or Path.cwd()).absolute()
    except OSError:  # the current directory is gone
        return None, {}
    for place in (start, *start.parents):
        own, project = place / "queuety.toml", place / "pyproject.toml"
        if own.is_file():
            return own, _toml(own, _read(own))
        if project.is_file() and "queuety" in (text := _read(project)):
            tools = _toml(project, text).get("tool", {})
            table = tools.get("queuety") if isinstance(tools, dict) else None
            if isinstance(table, dict):
                return project, table
    return None, {}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "make it readable, in UTF-8") from None


def _toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # here: a worker that reads no file need not hold it

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", 'put quotes around texts such as "5m"') from None
