"""Unique jobs: what their keys are made of, and the options that say how long a key is held."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from queuety.errors import UsageError
from queuety.model import NewJob
from queuety.units import CENTURY_S, seconds

ON_DUPLICATE = ("return", "replace", "error", "skip")
UNTIL = ("end", "start")
SHORTEST_S = 0.001


def key_of(job: NewJob, payload: str) -> str | None:
    """The key that a job with this payload is written under; None if it is not unique.

    A key given by the caller comes before one made of handler and payload.
    """
    if job.unique_key is not None or not job.unique:
        return job.unique_key
    return digest(job.handler, payload)


def digest(handler: str, payload: str) -> str:
    """The key of a handler and a payload (JSON text), the same for every order of the payload's keys.

    Numbers are taken as they are written: 1 and 1.0 are different payloads.
    """
    canonical = json.dumps([handler, json.loads(payload)], sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"


def check_unique(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(
            f"unique={value!r} is neither True nor False", "a key of your own goes into unique_key"
        )
    return value


def check_until(value: object) -> str:
    if value not in UNTIL:
        raise UsageError(f"unique_until={value!r} is unknown", f"use one of {', '.join(UNTIL)}")
    return str(value)


def check_for(value: object) -> float:
    """Seconds that a key is held, as a number, "1h" or a timedelta."""
    return seconds(value, minimum=SHORTEST_S, maximum=CENTURY_S)


def check_on_duplicate(value: object) -> str:
    if value not in ON_DUPLICATE:
        raise UsageError(f"on_duplicate={value!r} is unknown", f"use one of {', '.join(ON_DUPLICATE)}")
    return str(value)


def unique_part(given: Any, own: Any) -> dict[str, Any]:
    """How unique a new job is: what is given for it wins over the handler's own.

    given: JobOptions.  own: Options.  Raises UsageError for an option that has no key to act on.
    """
    unique = own.unique if given.unique is None else given.unique
    if not unique and given.unique_key is None:
        for option, value in (
            ("unique_for", given.unique_for_s),
            ("unique_until", given.unique_until),
            ("on_duplicate", given.on_duplicate),
        ):
            if value is not None:
                raise UsageError(
                    f"{option} is given, but the job has no key", "add unique=True or unique_key=…"
                )
        return {}
    scope = own if given.unique_for_s is None and given.unique_until is None else given
    return {
        "unique": unique,
        "unique_key": given.unique_key,
        "unique_until": scope.unique_until or "end",
        "unique_for_s": scope.unique_for_s,
        "on_duplicate": given.on_duplicate or "return",
    }


def check_scope(parsed: dict[str, Any]) -> None:
    """Refuse a window and a state at once: a key has one scope."""
    if "unique_for_s" in parsed and "unique_until" in parsed:
        raise UsageError("unique_for and unique_until exclude each other", "give one of them")


def check_keyed(parsed: dict[str, Any]) -> None:
    """Refuse a key of one's own together with `unique`, which says that there is another one, or none."""
    if "unique" in parsed and parsed.get("unique_key") is not None:
        raise UsageError(
            f"unique={parsed['unique']} and unique_key exclude each other",
            "unique_key=… is a key of your own, unique=True the payload as the key, unique=False no key: give one",
        )
