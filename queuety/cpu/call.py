"""A call: the name of a function, arguments that are data, and the future of what comes of it."""

from __future__ import annotations

import importlib
import itertools
import pickle
import sys
import time
import types
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from queuety.cpu.wire import Kind, Raised
from queuety.errors import CallRefused, RemoteError, ResultRefused

_SHAPE = "give module:function, such as shop.images:shrink"
_PIECE = 1 << 18  # bytes copied at a time
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """What came of a call: a value, or the error to raise at the caller."""

    value: Any = None
    error: Exception | None = None

    def unwrap(self) -> Any:
        """The value; raises the error."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                del self  # no cycle of an error, its traceback and this frame
        return self.value


@dataclass(eq=False)
class Call:
    """One call on its way.

    packed: the pickled arguments, in parts.  timeout_s: limit of the work; None: none.
    waits_since: monotonic time.  lost: how many workers have died before they began it.
    future: its result is an Answer; it never has an exception.
    """

    function: str
    packed: tuple[bytes, ...]
    timeout_s: float | None
    number: int = field(default_factory=lambda: next(_numbers))
    waits_since: float = field(default_factory=time.monotonic)
    lost: int = 0
    future: Future[Answer] = field(default_factory=Future)

    def settle(self, answer: Answer) -> None:
        """Tell the caller, unless it waits no longer."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(answer)


class RemoteTraceback(Exception):
    """The cause of an error that was raised in a worker: the traceback there, as a text."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.trace = trace

    def __str__(self) -> str:
        return f"\n\n{self.trace}"


def prepare(function: object, args: tuple[Any, ...], kwargs: dict[str, Any], timeout_s: float | None) -> Call:
    """A call that can be sent; CallRefused if there is no such function or an argument is not data."""
    name = check_function(function)
    return Call(name, _pack(name, args, kwargs), timeout_s)


def check_function(name: object) -> str:
    """Return the name `module:function`, or raise CallRefused.

    Nothing is imported: the function of a module that is not imported here is looked for in the worker, so that
    the libraries which heavy work needs never get into the application's process.
    """
    if not isinstance(name, str):
        own = getattr(name, "__module__", None), getattr(name, "__qualname__", None)
        hint = f"give {own[0]}:{own[1]} as a text" if all(own) else _SHAPE
        raise CallRefused(f"a call names its function by a text, not by a {type(name).__name__}", hint)
    module, colon, attribute = name.partition(":")
    if not colon or not all(word.isidentifier() for word in [*module.split("."), *attribute.split(".")]):
        raise CallRefused(f"the function {name[:80]!r} cannot be meant", _SHAPE)
    if special := next((word for word in attribute.split(".") if word[:2] == word[-2:] == "__"), None):
        raise CallRefused(f"the function {name[:80]!r} cannot be meant: {special} is Python's own", _SHAPE)
    if module == "__main__":
        raise CallRefused(
            f"{name}: a worker does not run the program's main module again", "put the function into a module"
        )
    if module in sys.modules:
        _look(name, sys.modules[module], attribute)
    elif missing := _missing(module):
        raise CallRefused(
            f"{name}: there is no module {missing!r} on Python's path", "set PYTHONPATH, or install it"
        )
    return name


def _look(name: str, found: Any, attribute: str) -> None:
    for word in attribute.split("."):
        try:
            found = getattr(found, word)
        except Exception as error:
            raise CallRefused(f"{name}: the module has no {attribute}") from error
    if not callable(found):
        raise CallRefused(f"{name} is a {type(found).__name__}, which cannot be called")


def _missing(module: str) -> str | None:
    """The part of a module's name for which there is no file; None if it is there, or nobody can tell."""
    for _ in range(2):
        try:
            missing = _first_missing(module)
        except Exception:  # noqa: BLE001 - a finder of somebody else; the worker will tell
            return None
        if missing is None:
            return None
        importlib.invalidate_caches()  # a file that has just been written
    return missing


def _first_missing(module: str) -> str | None:
    name, path = "", None
    for word in module.split("."):
        parent, name = name, f"{name}.{word}" if name else word
        if name in sys.modules:
            path = getattr(sys.modules[name], "__path__", None)
            continue
        if parent and path is None:
            return name  # the parent is no package
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None:
            return name
        path = spec.submodule_search_locations
    return None


def _pack(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, ...]:
    try:
        return _dump((args, kwargs))
    except Exception as error:
        named: Iterable[tuple[str, Any]] = [
            *((f"argument {place}", value) for place, value in enumerate(args, 1)),
            *((f"argument {key!r}", value) for key, value in kwargs.items()),
        ]
        for what, value in named:
            problem = _problem(value)
            if problem.startswith("RecursionError"):
                raise CallRefused(
                    f"{name}: {what}, a {type(value).__qualname__}, is nested too deep to be pickled:"
                    f" Python's recursion limit is {sys.getrecursionlimit()}, and a level takes two or more",
                    "flatten it, or give it as a text, such as JSON",
                ) from None
            if problem:
                raise CallRefused(
                    f"{name}: {what}, a {type(value).__qualname__}, cannot be pickled: {problem}",
                    "give data: numbers, texts, bytes, lists, dicts, instances of importable classes",
                ) from error
        raise CallRefused(f"{name}: the arguments cannot be pickled: {error}") from error


def _problem(value: Any) -> str:
    try:
        _dump(value)
    except Exception as error:  # noqa: BLE001 - classes are the caller's, and may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _dump(value: Any) -> tuple[bytes, ...]:
    sink = _Sink()
    _Pickler(sink, protocol=5).dump(value)
    return tuple(sink.parts)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Refuse what a worker could not find: what the program's main module defines."""
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the program's main module")
        return NotImplemented


class _Sink:
    """A file for the pickler. In Python on purpose: between two frames of 64 kB other threads have their turn.

    `pickle.dumps` keeps the interpreter, and with it every event loop, until it is done.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> int:
        if isinstance(data, bytes):
            self.parts.append(data)
        else:
            self.parts.extend(bytes(data[start : start + _PIECE]) for start in range(0, len(data), _PIECE))
        return len(data)


class _Source:
    """A file for the unpickler, in Python for the same reason."""

    def __init__(self, data: memoryview) -> None:
        self._view, self._place = data, 0

    def read(self, size: int = -1) -> bytes:
        start = self._place
        self._place = len(self._view) if size < 0 else min(start + size, len(self._view))
        return bytes(self._view[start : self._place])

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), len(self._view) - self._place)
        for start in range(0, size, _PIECE):  # one copy of 100 MB would keep the interpreter for 0.1 s
            end = min(start + _PIECE, size)
            buffer[start:end] = self._view[self._place + start : self._place + end]
        self._place += size
        return size

    def readline(self) -> bytes:
        end = bytes(self._view[self._place :]).find(b"\n")
        return self.read(end + 1 if end >= 0 else -1)


def answer(call: Call, kind: Kind, body: memoryview) -> Answer:
    """What the caller gets for what the worker has sent; never raises."""
    match kind:
        case Kind.VALUE:
            try:
                return Answer(pickle.Unpickler(_Source(body)).load())
            except BaseException as error:  # noqa: BLE001 - classes are the caller's, and may raise anything
                refused = ResultRefused(f"{call.function}: the result cannot be unpickled here: {error!r}")
                refused.__cause__ = error
                return Answer(error=refused)
        case Kind.RAISED:
            return Answer(error=_error(call.function, pickle.loads(body)))
        case Kind.REFUSED:
            return Answer(error=CallRefused(_text(body)))
        case _:
            return Answer(error=ResultRefused(_text(body), "return data"))


def summary(kind: Kind, body: memoryview) -> str | None:
    """The error of an answer in one line, for events; None for a value."""
    if kind is Kind.VALUE:
        return None
    if kind is Kind.RAISED:
        name, text, _, _ = pickle.loads(body)
        return f"{name.removeprefix('builtins.')}: {text}"
    return _text(body)


def _text(body: memoryview) -> str:
    return bytes(body).decode(errors="replace")


def _error(function: str, raised: Raised) -> Exception:
    kind, text, trace, blob = raised
    found: Any = None
    if blob is not None:
        try:
            found = pickle.loads(blob)
        except BaseException:  # noqa: BLE001 - an exception that takes other arguments than it keeps
            found = None
    if not isinstance(found, Exception):
        found = RemoteError(f"{function} raised {kind.removeprefix('builtins.')}: {text}", kind=kind)
    found.__cause__ = RemoteTraceback(trace)
    checked: Exception = found
    return checked
