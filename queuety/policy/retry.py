"""When to try again, and whether."""

from __future__ import annotations

import errno
import json
import math
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from queuety.errors import Permanent, UsageError

Kind: TypeAlias = Literal["exponential", "linear", "fixed", "steps"]
Verdict: TypeAlias = Literal["transient", "permanent", "bug"]
RetryPolicy: TypeAlias = "Literal['all', 'transient'] | Callable[[BaseException], str]"

LONGEST_S = 100 * 365.25 * 86_400
MAX_STEPS = 1000
KINDS: tuple[Kind, ...] = ("exponential", "linear", "fixed")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits before its next attempt.

    kind:    exponential doubles, linear adds `initial` each time, fixed stays; steps takes `times` in turn,
             the last one again and again.
    initial: seconds after the first failure.
    max:     seconds; nothing longer is returned.
    jitter:  share of the wait, 0 to 1, that chance may take off; 1 is full jitter.
    Source: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    kind: Kind = "exponential"
    initial: float = 2.0
    max: float = 3600.0
    jitter: float = 0.1
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"{self.kind!r} is not a back-off", f"give one of {', '.join(KINDS)}")
        _check_number("initial", self.initial, LONGEST_S)
        _check_number("max", self.max, LONGEST_S)
        _check_number("jitter", self.jitter, 1.0)
        if self.kind == "steps":
            if not 1 <= len(self.times) <= MAX_STEPS:
                raise UsageError(
                    f"a back-off of {len(self.times)} steps is not possible",
                    f"give 1 to {MAX_STEPS} waits in seconds, such as [1, 10, 60]",
                )
            for place, wait in enumerate(self.times):
                _check_number(f"step {place}", wait, LONGEST_S)
        elif self.times:
            raise UsageError(f"a back-off of kind {self.kind} has no steps", "use Backoff.steps([…])")
        elif self.initial > self.max:
            raise UsageError(
                f"the back-off begins with {self.initial} s, longer than its maximum of {self.max} s",
                "raise max, or lower initial",
            )

    @classmethod
    def steps(cls, times: Iterable[float], *, jitter: float = 0.0) -> Backoff:
        """Wait exactly these seconds in turn; the last one serves all further attempts."""
        waits = tuple(times)
        for place, wait in enumerate(waits):
            _check_number(f"step {place}", wait, LONGEST_S)
        return cls("steps", initial=0.0, max=max(waits, default=0.0), jitter=jitter, times=waits)

    def delay(self, attempts: int, spread: float) -> float:
        """Seconds to wait before the next attempt: finite, 0 to `max`.

        attempts: runs that have counted so far; fewer than 1 is taken as 1.
        spread:   uniform in [0, 1); given by the caller, so that this stays pure.
        """
        return self._wait(max(attempts, 1)) * (1.0 - self.jitter * spread)

    def _wait(self, attempts: int) -> float:
        """The wait before chance takes its share; capped first, so that nothing can overflow."""
        if self.kind == "steps":
            return self.times[min(attempts, len(self.times)) - 1]
        if self.kind == "fixed":
            return self.initial
        if self.kind == "linear":
            return min(self.max, self.initial * min(attempts, 10**15))
        try:
            return min(self.max, math.ldexp(self.initial, min(attempts - 1, 3000)))
        except OverflowError:
            return self.max

    @classmethod
    def parse(cls, spec: object, default: Backoff | None = None) -> Backoff:
        """Read what a user may give: a kind's name, a list of seconds, a Backoff, or None for the default."""
        if spec is None:
            return default or cls()
        if isinstance(spec, Backoff):
            return spec
        for kind in KINDS:
            if isinstance(spec, str) and spec == kind:
                return cls(kind)
        if isinstance(spec, (list, tuple)):
            return cls.steps(spec)
        shown = repr(spec) if isinstance(spec, str) else type(spec).__name__
        raise UsageError(
            f"{shown[:80]} is not a back-off",
            f"give one of {', '.join(KINDS)}, a list of seconds, or Backoff(…)",
        )

    def to_json(self) -> str:
        """The text for the job's `backoff` column."""
        if self.kind == "steps":
            steps: dict[str, Any] = {"steps": list(self.times)}
            return json.dumps(steps | {"jitter": self.jitter} if self.jitter else steps)
        return json.dumps(
            {"kind": self.kind, "initial": self.initial, "max": self.max, "jitter": self.jitter}
        )

    @classmethod
    def from_json(cls, stored: object, default: Backoff | None = None) -> Backoff:
        """Read the `backoff` column, as text or decoded.

        default: taken for NULL and for what cannot be read, since a job's end must always be booked; without
        one, that is a UsageError.
        """
        try:
            data = json.loads(stored) if isinstance(stored, str) else stored
            if not isinstance(data, Mapping):
                raise UsageError(
                    "a stored back-off is not a JSON object", "store what Backoff.to_json() gives"
                )
            # The trace that the job belongs to is kept here too.
            data = {name: value for name, value in data.items() if name != "trace"}
            if not data and default is not None:
                return default
            if "steps" in data:
                return cls.steps(data["steps"], jitter=data.get("jitter", 0.0))
            return cls(**data)
        except (UsageError, TypeError, ValueError) as error:
            if default is not None:
                return default
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"a stored back-off cannot be read: {error}") from error


def check_policy(policy: object) -> RetryPolicy:
    """Return the retry policy, or raise UsageError if it is none."""
    if policy == "all":
        return "all"
    if policy == "transient":
        return "transient"
    if callable(policy):
        return policy
    raise UsageError(
        f"{str(policy)[:80]!r} is not a retry policy",
        "give all, transient, or a function (exception) -> transient | permanent | bug",
    )


def classify(error: BaseException, policy: RetryPolicy = "all") -> Verdict:
    """Say whether another attempt can help; only `transient` is tried again.

    `Permanent` is permanent under every policy. A function that raises or answers something else changes
    nothing: the error counts as transient, and a note on it (shown in its traceback) tells why.
    """
    if isinstance(error, Permanent):
        return "permanent"
    if policy == "all":
        return "transient"
    if policy == "transient":
        return _by_kind(error)
    try:
        answer = policy(error)
    except BaseException as mistake:  # noqa: BLE001 - whatever user code does, the run's outcome stands
        return _noted(error, f"the retry policy raised {type(mistake).__name__}; taken as transient")
    # Not `in`: the answer's own comparison is user code.
    for verdict in get_args(Verdict):
        if isinstance(answer, str) and str.__eq__(answer, verdict) is True:
            return verdict  # type: ignore[no-any-return]
    return _noted(
        error, f"the retry policy answered a {type(answer).__name__} that is no verdict; taken as transient"
    )


def _noted(error: BaseException, note: str) -> Verdict:
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001, S110 - an exception may refuse notes
        pass
    return "transient"


_BUGS = (
    TypeError, AttributeError, NameError, AssertionError, NotImplementedError, LookupError, ImportError,
    SyntaxError, ArithmeticError, RecursionError,
)  # fmt: skip

_ERRNO_NAMES = (
    "EAGAIN", "EADDRNOTAVAIL", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH",
    "ETIMEDOUT",
)  # fmt: skip
_NETWORK_ERRNOS = frozenset(getattr(errno, name) for name in _ERRNO_NAMES if hasattr(errno, name))

# Base classes of time-outs and connection errors in requests, urllib3, httpx, aiohttp, botocore, redis and
# database drivers, which do not derive from the built-in ones. Known by name: none of them is imported here.
_NETWORK_NAMES = frozenset({
    "ClientConnectionError", "ClientOSError", "ConnectError", "ConnectionError", "HTTPClientError",
    "HTTPTimeoutError", "InterfaceError", "NetworkError", "OperationalError", "ProtocolError",
    "RemoteProtocolError", "ServerDisconnectedError", "Timeout", "TimeoutError", "TimeoutException",
    "TransportError",
})  # fmt: skip


def _by_kind(error: BaseException, depth: int = 0) -> Verdict:
    """Time-outs, connection errors and HTTP 408, 429 and 5xx are transient; the rest is final."""
    if isinstance(error, BaseExceptionGroup):
        kinds = {_by_kind(inner, depth + 1) for inner in error.exceptions} if depth < 10 else {"permanent"}
        return "transient" if kinds == {"transient"} else "permanent"
    status = _http_status(error)
    if status is not None:
        return "transient" if status in (408, 429) or status >= 500 else "permanent"
    if isinstance(error, (TimeoutError, ConnectionError, socket.gaierror, socket.herror)):
        return "transient"
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return "transient"
    if not _NETWORK_NAMES.isdisjoint(base.__name__ for base in type(error).__mro__):
        return "transient"
    reason = _attribute(error, "reason")  # urllib wraps the real one
    if isinstance(reason, OSError) and depth < 10:
        return _by_kind(reason, depth + 1)
    return "bug" if isinstance(error, _BUGS) else "permanent"


def _http_status(error: BaseException) -> int | None:
    """The status of an HTTP response that an exception of any library carries, 400 to 599."""
    if isinstance(error, SystemExit):
        return None  # its code is an exit code
    response = _attribute(error, "response")
    for owner, name in (
        (error, "status_code"),
        (response, "status_code"),
        (error, "status"),
        (response, "status"),
        (error, "code"),
    ):
        value = _attribute(owner, name)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return int(value)
    return None


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property is somebody else's code
        return None


def _check_number(what: str, value: object, highest: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest:
        raise UsageError(
            f"the back-off's {what} is {repr(value)[:80]}", f"give a number from 0 to {highest:g}"
        )
