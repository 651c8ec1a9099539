"""Values that JSON does not have, turned into JSON and back by what an annotation says."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from queuety.errors import UsageError


class Misfit(Exception):
    """A value that its annotation does not cover; `path` gathers the way to it from the inside out."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path: list[str] = []

    def place(self, root: str) -> str:
        return root + "".join(reversed(self.path[-20:]))

    def inside(self, step: str) -> Misfit:
        self.path.append(step)
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class Converter:
    """One type on its way into JSON (`encode`) and back (`decode`); both raise Misfit.

    python: the type that goes in; wire: the JSON type that comes out. A union tells its arms apart by them.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    python: type
    wire: type


def converter_of(annotation: Any) -> Converter | None:
    """The converter for an annotation; None if its values are JSON already, or nothing is known of them."""
    return _Builder().build(annotation)


def stripped(annotation: Any) -> Any:
    """The annotation without Annotated, NewType and type aliases around it."""
    for _ in range(50):
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            break
    return annotation


class _Builder:
    """Builds the converters of one annotation; remembers dataclasses, which may contain themselves."""

    def __init__(self) -> None:
        self._dataclasses: dict[type, Converter] = {}

    def build(self, annotation: Any) -> Converter | None:
        annotation = stripped(annotation)
        origin = typing.get_origin(annotation) or annotation
        arms = typing.get_args(annotation)
        if origin in _SCALARS:
            return _SCALARS[origin]
        if origin in (typing.Union, types.UnionType):
            return self._union(annotation)
        if origin in _LISTS and len(arms) == 1:
            return _list(self.build(arms[0]))
        if origin in _DICTS and len(arms) == 2 and stripped(arms[0]) is str:
            return _dict(self.build(arms[1]))
        if origin is tuple:
            return self._tuple(arms)
        if isinstance(origin, type) and issubclass(origin, enum.Enum):
            return _enum(origin)
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self._dataclasses.get(origin) or self._dataclass(origin)
        return None

    def _union(self, annotation: Any) -> Converter | None:
        """One converter for several types, if their JSON tells them apart; else only plain JSON will do."""
        converters: list[Converter] = []
        plain: set[type] = set()
        for arm in _arms(annotation):
            converter = self.build(arm)
            if converter is not None:
                converters.append(converter)
            elif (bare := typing.get_origin(arm) or arm) in _PLAIN:
                plain |= _PLAIN[bare]
            else:
                return None  # Any, object …: could be everything
        writers = {converter.python: converter.encode for converter in converters}
        readers = {converter.wire: converter.decode for converter in converters}
        if not converters or len(readers) < len(converters) or not plain.isdisjoint(readers):
            return None
        names = " or ".join(sorted(kind.__name__ for kind in {*writers, *plain}))

        def through(value: Any, known: dict[type, Callable[[Any], Any]]) -> Any:
            step = known.get(type(value))
            if step is None and type(value) not in plain:
                raise Misfit(f"must be {names}, not {type(value).__name__}", "pass one of them")
            return value if step is None else step(value)

        return Converter(
            lambda value: through(value, writers), lambda value: through(value, readers), object, object
        )

    def _tuple(self, arms: tuple[Any, ...]) -> Converter:
        """Tuples of any length (`tuple`, `tuple[X, ...]`) or of a fixed one (`tuple[X, Y]`)."""
        if not arms or (len(arms) == 2 and arms[1] is Ellipsis):
            each = self.build(arms[0]) if arms else None

            def converters(value: Any) -> list[Converter | None]:
                return [each] * len(value)
        else:
            fixed = [self.build(arm) for arm in arms if arm != ()]

            def converters(value: Any) -> list[Converter | None]:
                if len(value) != len(fixed):
                    raise Misfit(f"must have {len(fixed)} elements, not {len(value)}", "see its annotation")
                return fixed

        def encode(value: Any) -> list[Any]:
            _expect(value, tuple)
            return _each(value, converters(value), _encode)

        def decode(value: Any) -> tuple[Any, ...]:
            _expect(value, list)
            return tuple(_each(value, converters(value), _decode))

        return Converter(encode, decode, tuple, list)

    def _dataclass(self, kind: type) -> Converter:
        fields: dict[str, Converter | None] = {}
        required: set[str] = set()
        # A field that __init__ does not take is computed: then only a comparison tells whether it comes back.
        computed = any(not f.init and f.compare for f in dataclasses.fields(kind))

        def encode(value: Any) -> dict[str, Any]:
            _expect(value, kind)
            data = _members({name: getattr(value, name) for name in fields}, fields, _encode)
            if computed and decode(data) != value:
                raise Misfit(f"is a {kind.__name__} that would not come back equal", "pass its parts")
            return data

        def decode(value: Any) -> Any:
            _expect(value, dict)
            for name in value:
                if name not in fields:
                    raise Misfit(f"has no field {ascii(name)[:80]} in {kind.__name__}")
            for name in required.difference(value):
                raise Misfit(f"is missing the field {name} of {kind.__name__}")
            arguments = _members(value, fields, _decode)
            try:
                return kind(**arguments)
            except (TypeError, ValueError) as error:
                raise Misfit(f"is no {kind.__name__}: {error}") from error

        converter = Converter(encode, decode, kind, dict)
        self._dataclasses[kind] = converter  # before its fields are read: they may hold the same class
        hints = _field_hints(kind)
        for f in dataclasses.fields(kind):
            if f.init:
                fields[f.name] = self.build(hints.get(f.name, f.type))
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                required.add(name)
        if foreign := ", ".join(sorted(required.difference(fields))):
            raise UsageError(
                f"{kind.__name__} needs {foreign}, which is no field of it",
                "take a dataclass that its fields alone can build",
            )
        return converter


def _arms(annotation: Any) -> list[Any]:
    """The members of a union, those of unions behind an alias too."""
    annotation = stripped(annotation)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    return [arm for member in typing.get_args(annotation) for arm in _arms(member)]


def _encode(converter: Converter, value: Any) -> Any:
    return converter.encode(value)


def _decode(converter: Converter, value: Any) -> Any:
    return converter.decode(value)


_Step = Callable[[Converter, Any], Any]


def _each(values: Any, converters: list[Converter | None], step: _Step) -> list[Any]:
    done = []
    for place, (converter, value) in enumerate(zip(converters, values, strict=True)):
        try:
            done.append(value if converter is None else step(converter, value))
        except Misfit as misfit:
            raise misfit.inside(f"[{place}]") from None
    return done


def _members(values: dict[str, Any], converters: dict[str, Converter | None], step: _Step) -> dict[str, Any]:
    done = {}
    for name, value in values.items():
        converter = converters[name]
        try:
            done[name] = value if converter is None else step(converter, value)
        except Misfit as misfit:
            raise misfit.inside(f".{name}" if name.isidentifier() else f"[{name[:80]!a}]") from None
    return done


def _list(each: Converter | None) -> Converter | None:
    if each is None:
        return None

    def encode(value: Any) -> list[Any]:
        _expect(value, list)
        return _each(value, [each] * len(value), _encode)

    def decode(value: Any) -> list[Any]:
        _expect(value, list)
        return _each(value, [each] * len(value), _decode)

    return Converter(encode, decode, list, list)


def _dict(each: Converter | None) -> Converter | None:
    if each is None:
        return None

    def encode(value: Any) -> dict[str, Any]:
        _expect(value, dict)
        return _members(value, dict.fromkeys(value, each), _encode)

    def decode(value: Any) -> dict[str, Any]:
        _expect(value, dict)
        return _members(value, dict.fromkeys(value, each), _decode)

    return Converter(encode, decode, dict, dict)


def _enum(kind: type[enum.Enum]) -> Converter:
    """By value where all values are texts or all are whole numbers (flags too), else by name."""
    types_of_values = {type(member.value) for member in kind}
    if issubclass(kind, enum.Flag):
        types_of_values = {int}
    by_value = types_of_values in ({str}, {int})
    wire = types_of_values.pop() if by_value else str

    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong_type(value, kind)
        return value.value if by_value else value.name

    def decode(value: Any) -> Any:
        _expect(value, wire)
        try:
            return kind(value) if by_value else kind[value]
        except (ValueError, KeyError):
            raise Misfit(f"is {ascii(value)[:80]}, which is no {kind.__name__}") from None

    return Converter(encode, decode, kind, wire)


def _scalar(kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> Converter:
    def encode(value: Any) -> str:
        _expect(value, kind)
        return write(value)

    def decode(value: Any) -> Any:
        _expect(value, str)
        try:
            return read(value)
        except (ValueError, InvalidOperation, OverflowError):
            raise Misfit(f"is {ascii(value)[:80]}, which is no {kind.__name__}") from None

    return Converter(encode, decode, kind, str)


def _write_datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        raise Misfit(
            "is a naive datetime: nobody can know its zone",
            "pass an aware one, such as datetime.now(timezone.utc)",
        )
    return value.isoformat()


def _read_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        raise Misfit("is a naive datetime")
    return value


def _write_time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Misfit("is a time whose zone has no offset without a date", "pass a datetime")
    return value.isoformat()


def _write_timedelta(value: timedelta) -> str:
    """ISO 8601, exact: `PT90S`, `-PT0.000001S`."""
    microseconds = value // timedelta(microseconds=1)
    whole, rest = divmod(abs(microseconds), 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{'-' if microseconds < 0 else ''}PT{whole}{fraction}S"


def _read_timedelta(text: str) -> timedelta:
    match = re.fullmatch(r"(-?)PT([0-9]{1,15})(?:\.([0-9]{1,6}))?S", text)
    if match is None:
        raise ValueError(text)
    sign, whole, fraction = match.groups()
    size = timedelta(seconds=int(whole), microseconds=int((fraction or "").ljust(6, "0")))
    return -size if sign else size


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Misfit(f"is {value}, which is no number", "pass None instead")
    return str(value)


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


def _expect(value: object, kind: type) -> None:
    # Exactly this type: a subclass would come back as its base.
    if type(value) is not kind:
        raise _wrong_type(value, kind)


def _wrong_type(value: object, kind: type) -> Misfit:
    return Misfit(f"must be a {kind.__name__}, not {type(value).__name__}", f"pass a {kind.__name__}")


def _field_hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # noqa: BLE001 - resolving runs the user's own expressions
        return {}


_SCALARS: dict[Any, Converter | None] = {
    datetime: _scalar(datetime, _write_datetime, _read_datetime),
    date: _scalar(date, date.isoformat, date.fromisoformat),
    time: _scalar(time, _write_time, time.fromisoformat),
    timedelta: _scalar(timedelta, _write_timedelta, _read_timedelta),
    Decimal: _scalar(Decimal, _write_decimal, _read_decimal),
    UUID: _scalar(UUID, str, UUID),
}
_ABC = collections.abc
_LISTS = (list, _ABC.Sequence, _ABC.Iterable, _ABC.Collection, _ABC.MutableSequence)
_DICTS = (dict, _ABC.Mapping, _ABC.MutableMapping)
# The JSON types that values of a plain annotation have.
_PLAIN: dict[Any, set[type]] = {
    str: {str}, int: {int, bool}, float: {float, int}, bool: {bool}, list: {list}, dict: {dict},
    types.NoneType: {types.NoneType}, None: {types.NoneType},
}  # fmt: skip
