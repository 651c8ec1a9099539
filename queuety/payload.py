"""Payloads: the arguments of a handler on their way into JSON and back."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from queuety.conversion import Converter, Misfit, converter_of, stripped
from queuety.errors import PayloadError, UsageError
from queuety.strict import dumps, loads, read

__all__ = ["Codec", "dumps", "loads", "read"]


class Codec:
    """Turns a call of one handler into a payload, and a payload into the arguments of the call.

    Built once per handler. `context_parameter` names the parameter that the worker fills in, if there is one;
    it is never part of a payload.
    """

    __slots__ = (
        "_all", "_converters", "_named", "_open", "_positional", "_required", "_rest", "context_parameter",
        "handler",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], handler: str, *, context_type: type | None = None
    ) -> None:
        """Read the function's signature; UsageError if no payload can serve it.

        context_type: annotation of the parameter to fill in.
        """
        self.handler = handler
        self.context_parameter: str | None = None
        self._converters: dict[str, Converter] = {}
        self._rest: Converter | None = None
        self._open = False
        positional: list[str] = []
        required: set[str] = set()
        named: set[str] = set()
        hints = _hints(function)
        for name, parameter in _parameters(function, handler).items():
            annotation = hints.get(name, parameter.annotation)
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise UsageError(
                    f"the parameter {name} of handler {handler} is positional-only; a payload holds named "
                    "arguments",
                    "remove the / from the signature",
                )
            converter = self._converter(name, annotation)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._open, self._rest = True, converter
                continue
            if context_type is not None and _is_context(annotation, context_type):
                self._take_context(name)
                continue
            named.add(name)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                positional.append(name)
            if parameter.default is parameter.empty:
                required.add(name)
            if converter is not None:
                self._converters[name] = converter
        self._positional = tuple(positional)
        self._required = frozenset(required)
        self._named = frozenset(named)
        # What a payload has when every argument is given: the usual case, told by one comparison.
        self._all = self._named

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], limit_bytes: int) -> str:
        """The payload of a call as JSON text; PayloadError names the argument that does not fit."""
        return dumps(self.bind(args, kwargs), limit_bytes=limit_bytes)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a call: named arguments, with annotated values turned into JSON's types.

        Arguments are checked against the signature; defaults stay out, so that a later version's apply.
        Raises PayloadError. Values of other types are left for `dumps` to check.
        """
        payload = dict(zip(self._positional, args, strict=False))
        if len(args) > len(payload):
            self._refuse(f"takes {len(self._positional)} arguments by position, {len(args)} are given")
        if not payload.keys().isdisjoint(kwargs):
            twice = next(name for name in payload if name in kwargs)
            self._refuse(f"is given the argument {twice} twice")
        payload.update(kwargs)
        if payload.keys() != self._all and (problem := self._misfit(payload)):
            self._refuse(problem)
        if not self._converters and self._rest is None:
            return payload
        return self._converted(payload)

    def check(self, payload: dict[str, Any]) -> None:
        """Raise PayloadError if a payload that is JSON already does not fit the handler."""
        try:
            self.revive(payload)
        except TypeError as error:
            raise PayloadError(str(error), self._usage()) from None

    def revive(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The arguments that a payload stands for, equal to those of the call; itself if none changes.

        Raises TypeError, as a wrong call does, if it does not fit the signature (any more): that run fails
        like any other, and the stored payload stays as it is.
        """
        if type(payload) is not dict:
            raise TypeError(
                f"{self.handler}() has a payload that is a {type(payload).__name__}, not an object"
            )
        if payload.keys() != self._all and (problem := self._misfit(payload)):
            raise TypeError(f"{self.handler}() {problem}; was its signature changed after the enqueue?")
        if not self._converters and self._rest is None:
            return payload
        arguments = dict(payload)
        name = ""
        try:
            for name, value in payload.items():
                converter = self._converters.get(name, self._rest if name not in self._named else None)
                if converter is not None:
                    arguments[name] = converter.decode(value)
        except Misfit as misfit:
            place = misfit.place(f"payload.{name}")
            raise TypeError(f"{self.handler}() cannot be called: {place} {misfit.reason}") from None
        return arguments

    def _converted(self, payload: dict[str, Any]) -> dict[str, Any]:
        name = ""
        try:
            for name, value in payload.items():
                converter = self._converters.get(name, self._rest if name not in self._named else None)
                if converter is not None:
                    payload[name] = converter.encode(value)
        except Misfit as misfit:
            raise PayloadError(f"{misfit.place(f'payload.{name}')} {misfit.reason}", misfit.hint) from None
        except RecursionError:
            raise PayloadError(
                f"payload.{name} is nested too deep, or contains itself", "make it flatter"
            ) from None
        return payload

    def _converter(self, name: str, annotation: Any) -> Converter | None:
        try:
            return converter_of(annotation)
        except UsageError as error:
            message = f"the parameter {name} of handler {self.handler} cannot be used: {error.message}"
            raise UsageError(message, error.hint) from None

    def _take_context(self, name: str) -> None:
        if self.context_parameter is not None:
            raise UsageError(
                f"handler {self.handler} asks for the context twice: {self.context_parameter} and {name}",
                "keep one of the two",
            )
        self.context_parameter = name

    def _misfit(self, payload: Mapping[Any, Any]) -> str:
        """How a payload's names differ from the signature's; empty if they fit."""
        if self.context_parameter in payload:
            return f"gets its {self.context_parameter} from the worker; it cannot be given"
        missing = [name for name in self._positional if name in self._required and name not in payload]
        missing += sorted(self._required.difference(payload, missing))
        if missing:
            return f"is missing the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        if not self._open:
            for name in payload:
                if name not in self._named:
                    return f"has no argument {ascii(name)[:80]}"
        return ""

    def _refuse(self, problem: str) -> NoReturn:
        raise PayloadError(f"{self.handler}() {problem}", self._usage())

    def _usage(self) -> str:
        names = [*self._positional, *sorted(self._named.difference(self._positional))]
        shown = [name if name in self._required else f"{name}=…" for name in names]
        return f"call it as {self.handler}({', '.join(shown + ['**'] * self._open)})"


def _parameters(function: Callable[..., Any], handler: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(
            f"the signature of handler {handler} cannot be read: {error}", "wrap it in a function of your own"
        ) from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved one by one: what is imported for type checkers only stays a text."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):  # functools.partial
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__"):  # an object with __call__
        target = type(target).__call__
    scope = getattr(target, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints[name] = typing.get_type_hints(one, globalns=scope)[name]
        except Exception:  # noqa: BLE001 - resolving runs the user's own expressions
            hints[name] = annotation
    return hints


def _is_context(annotation: Any, context_type: type) -> bool:
    annotation = stripped(annotation)
    if isinstance(annotation, str):  # not resolved: the name must do
        return annotation.strip("\"' ").split("|")[0].strip().split(".")[-1] == context_type.__name__
    if isinstance(annotation, type):
        return issubclass(annotation, context_type)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_context(arm, context_type) for arm in typing.get_args(annotation))
    return False
