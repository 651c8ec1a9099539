from __future__ import annotations

import enum
import functools
import json
import uuid
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NewType, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import PayloadError, UsageError
from queuety.payload import Codec

if TYPE_CHECKING:
    import elsewhere  # type: ignore[import-not-found]
    from elsewhere import Unknown

MB = 1 << 20
SEOUL = timezone(timedelta(hours=9))


class Context:
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1
    L = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    ONE = 1.5


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Text(enum.StrEnum):
    A = "a"


@dataclass
class Line:
    price: Decimal
    day: date
    count: int = 1


@dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    color: Color | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tree:
    when: datetime
    children: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


@dataclass
class Better(Line):
    pass


@dataclass
class Computed:
    a: int
    double: int = field(init=False)

    def __post_init__(self):
        self.double = self.a * 2


@dataclass
class Asking:
    a: int
    b: InitVar[int]


@dataclass
class Choosy:
    a: int

    def __post_init__(self):
        if self.a < 0:
            raise ValueError("negative")


BAD_LINE = Line(1.5, date(2030, 1, 1))  # type: ignore[arg-type]
OPTIONAL_CONTEXT: Any = Union[Context, None]  # noqa: UP007 - the old spelling is what is tested
OPTIONAL_DATE: Any = Union[date, None]  # noqa: UP007
UserId = NewType("UserId", UUID)


def add(a: int, b: int = 2) -> int:
    return a + b


def codec(function, name=None):
    return Codec(function, name or function.__name__, context_type=Context)


def taking(annotation, default=None):
    """The codec of a handler with one parameter `v` of that annotation."""

    def handler(v):
        pass

    handler.__annotations__ = {"v": annotation}
    return codec(handler)


def there_and_back(annotation, value):
    one = taking(annotation)
    return one.revive(json.loads(one.encode((value,), {}, MB)))["v"]


def test_a_call_becomes_named_arguments():
    assert codec(add).encode((1,), {"b": 5}, MB) == '{"a":1,"b":5}'


def test_defaults_stay_out_of_the_payload():
    assert codec(add).bind((1,), {}) == {"a": 1}


def test_plain_arguments_come_back_as_the_very_same_object():
    payload = {"a": 1, "b": 2}

    assert codec(add).revive(payload) is payload


def test_binding_leaves_the_callers_mapping_alone():
    def handler(v: datetime) -> None:
        pass

    given_arguments = {"v": datetime(2030, 1, 1, tzinfo=UTC)}
    codec(handler).bind((), given_arguments)

    assert given_arguments == {"v": datetime(2030, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"add\(\) is missing the argument a \(call it as add\(a, b=…\)\)"),
        ((1, 2, 3), {}, r"add\(\) takes 2 arguments by position, 3 are given"),
        ((1,), {"a": 2}, r"add\(\) is given the argument a twice"),
        ((1,), {"c": 2}, r"add\(\) has no argument 'c'"),
        ((), {"a": 1, 5: 2}, r"add\(\) has no argument 5"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_handlers_name(args, kwargs, message):
    with pytest.raises(PayloadError, match=message):
        codec(add).bind(args, kwargs)


@pytest.mark.parametrize("payload", [{}, {"b": 1}, {"a": 1, "c": 2}, [], None, "a"])
def test_a_payload_that_does_not_fit_any_more_is_a_type_error(payload):
    with pytest.raises(TypeError, match=r"add\(\)"):
        codec(add).revive(payload)


def test_a_missing_keyword_only_argument_is_named():
    def handler(a, *, b, c=1):
        pass

    with pytest.raises(PayloadError, match="missing the arguments a, b"):
        codec(handler).bind((), {})


def test_further_names_go_to_a_handler_that_takes_any():
    def handler(a, **rest):
        pass

    assert codec(handler).bind((1,), {"x": 2}) == {"a": 1, "x": 2}
    assert codec(handler).revive({"a": 1, "x": 2}) == {"a": 1, "x": 2}


def test_the_annotation_of_further_names_holds_for_each():
    def handler(**days: date) -> None:
        pass

    assert codec(handler).revive({"x": "2030-01-31"}) == {"x": date(2030, 1, 31)}


def test_a_positional_only_parameter_is_refused_at_registration():
    def handler(a, /):
        pass

    with pytest.raises(UsageError, match="the parameter a of handler handler is positional-only"):
        codec(handler)


def test_a_handler_without_a_readable_signature_is_refused_at_registration():
    with pytest.raises(UsageError, match="signature of handler x cannot be read"):
        codec(type, "x")


def test_the_context_is_never_part_of_the_payload():
    def handler(ctx: Context, to: str) -> None:
        pass

    one = codec(handler)

    assert one.context_parameter == "ctx"
    assert one.bind(("a@b",), {}) == {"to": "a@b"}
    assert one.revive({"to": "a@b"}) == {"to": "a@b"}


@pytest.mark.parametrize("annotation", [Context | None, OPTIONAL_CONTEXT, Annotated[Context, 1], "Context"])
def test_the_context_is_known_in_every_usual_spelling(annotation):
    assert taking(annotation).context_parameter == "v"


def test_a_context_imported_for_type_checkers_only_is_known_by_its_name():
    def handler(ctx: elsewhere.Context, other: Unknown) -> None:
        pass

    assert codec(handler).context_parameter == "ctx"


def test_a_context_cannot_be_given():
    def handler(ctx: Context, a: int) -> None:
        pass

    with pytest.raises(PayloadError, match="gets its ctx from the worker"):
        codec(handler).bind((), {"a": 1, "ctx": 2})
    with pytest.raises(TypeError, match="gets its ctx from the worker"):
        codec(handler).revive({"a": 1, "ctx": 2})


def test_a_context_asked_for_twice_is_refused_at_registration():
    def handler(a: Context, b: Context) -> None:
        pass

    with pytest.raises(UsageError, match="twice: a and b"):
        codec(handler)


def test_one_unknown_annotation_does_not_spoil_the_others():
    def handler(a: Unknown, day: date) -> None:
        pass

    assert codec(handler).revive({"a": 1, "day": "2030-01-31"}) == {"a": 1, "day": date(2030, 1, 31)}


VALUES = [
    (datetime, datetime(2030, 1, 31, 9, 0, 0, 123456, tzinfo=SEOUL)),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    (datetime, datetime(1900, 1, 1, tzinfo=ZoneInfo("Asia/Seoul"))),
    (date, date(2030, 1, 31)),
    (time, time(9, 30, 0, 1)),
    (time, time(9, 30, tzinfo=SEOUL)),
    (timedelta, timedelta(days=-999999999)),
    (timedelta, timedelta(microseconds=-1)),
    (Decimal, Decimal("-0.00")),
    (Decimal, Decimal("1E+400")),
    (UUID, uuid.UUID(int=5)),
    (Color, Color.RED),
    (Size, Size.L),
    (Odd, Odd.PAIR),
    (Rights, Rights.READ | Rights.WRITE),
    (Text, Text.A),
    (Line, Line(Decimal("1.50"), date(2030, 1, 1))),
    (Order, Order(UUID(int=1), [Line(Decimal(1), date(2030, 1, 1), 5)], Color.BLUE, {"a": [1]})),
    (Tree, Tree(datetime(2030, 1, 1, tzinfo=UTC), [Tree(datetime(2031, 1, 1, tzinfo=UTC))])),
    (Computed, Computed(2)),
    (list[date], [date(2030, 1, 1)]),
    (Sequence[date], [date(2030, 1, 1)]),
    (dict[str, Decimal], {"a b": Decimal(1)}),
    (date | None, None),
    (OPTIONAL_DATE, date(2030, 1, 1)),
    (int | date, 5),
    (int | date | None, date(2030, 1, 1)),
    (Line | date, Line(Decimal(1), date(2030, 1, 1))),
    (tuple[int, ...], (1, 2)),
    (tuple[date, int], (date(2030, 1, 1), 5)),
    (tuple[()], ()),
    (tuple, (1, "a")),
    (list[tuple[int, date] | None], [(1, date(2030, 1, 1)), None]),
    (dict[str, list[Color]], {"a": [Color.RED]}),
    (UserId, UUID(int=1)),
    (Annotated[date, "x"], date(2030, 1, 1)),
    (list[int], [1, 2]),
    (int, 5),
    (Any, {"a": None}),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda part: str(part)[:40])
def test_an_annotated_value_comes_back_equal_and_of_the_same_type(annotation, value):
    back = there_and_back(annotation, value)

    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) or isinstance(value, datetime)


@given(st.datetimes(timezones=st.timezones()).filter(lambda moment: moment.utcoffset() is not None))
def test_every_aware_datetime_comes_back_as_the_same_moment(moment):
    back = there_and_back(datetime, moment)

    assert back.replace(tzinfo=None) - back.utcoffset() == moment.replace(tzinfo=None) - moment.utcoffset()


@given(st.timedeltas())
def test_every_timedelta_comes_back_equal(value):
    assert there_and_back(timedelta, value) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_every_decimal_comes_back_with_all_its_digits(value):
    assert there_and_back(Decimal, value).as_tuple() == value.as_tuple()


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (datetime, datetime(2030, 1, 1), "payload.v is a naive datetime"),
        (datetime, "2030-01-01T00:00:00Z", "payload.v must be a datetime, not str"),
        (datetime, date(2030, 1, 1), "payload.v must be a datetime, not date"),
        (date, datetime(2030, 1, 1, tzinfo=UTC), "payload.v must be a date, not datetime"),
        (date | None, "2030-01-01", "payload.v must be NoneType or date, not str"),
        (time, time(9, tzinfo=ZoneInfo("Asia/Seoul")), "payload.v is a time whose zone has no offset"),
        (Decimal, Decimal("NaN"), "payload.v is NaN, which is no number"),
        (Decimal, 1.5, "payload.v must be a Decimal, not float"),
        (Color, "red", "payload.v must be a Color, not str"),
        (Line, Better(Decimal(1), date(2030, 1, 1)), "payload.v must be a Line, not Better"),
        (Order, Order(UUID(int=1), [BAD_LINE]), "payload.v.lines[0].price must be a Decimal, not float"),
        (list[date], (date(2030, 1, 1),), "payload.v must be a list, not tuple"),
        (list[date], [date(2030, 1, 1), 5], "payload.v[1] must be a date, not int"),
        (dict[str, date], {"a b": 5}, "payload.v['a b'] must be a date, not int"),
        (tuple[int, ...], [1], "payload.v must be a tuple, not list"),
        (tuple[int, int], (1,), "payload.v must have 2 elements, not 1"),
        (tuple[int, ...], ((1,),), "payload.v[0] is a tuple"),
        (int, datetime(2030, 1, 1, tzinfo=UTC), "payload.v is a datetime, which JSON cannot carry"),
        (str | date, date(2030, 1, 1), "payload.v is a date, which JSON cannot carry"),
        (dict[int, str], {1: "a"}, "payload.v has a key that is an int"),
        (Any, {1}, "payload.v is a set"),
    ],
)
def test_a_value_that_its_annotation_does_not_cover_is_refused_with_its_place(annotation, value, message):
    with pytest.raises(PayloadError) as caught:
        taking(annotation).encode((value,), {}, MB)

    assert caught.value.message.startswith(message)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("annotation", "stored"),
    [
        (datetime, "2030-01-01T00:00:00"), (datetime, 5), (datetime, "x"), (date, None), (Decimal, "NaN"),
        (Decimal, "x"), (UUID, "x"), (Color, "green"), (Size, "1"), (Size, True), (Odd, "NO"),
        (Line, {"price": "1"}), (Line, {"price": "1", "day": "2030-01-01", "more": 1}), (Line, []),
        (list[date], ["x"]),
        (list[date], "x"), (dict[str, date], {"a": "x"}), (tuple[int, int], [1]), (date | None, 5),
        (timedelta, "PT5"), (timedelta, "PT999999999999999S"), (Choosy, {"a": -1}),
    ],
)  # fmt: skip
def test_a_stored_value_that_does_not_fit_any_more_is_a_type_error(annotation, stored):
    with pytest.raises(TypeError, match=r"handler\(\) cannot be called: payload\.v"):
        taking(annotation).revive({"v": stored})


def test_a_payload_that_is_json_already_can_be_checked():
    one = taking(date)

    one.check({"v": "2030-01-31"})
    with pytest.raises(PayloadError, match=r"payload\.v is 'soon'"):
        one.check({"v": "soon"})


def test_fields_that_were_added_with_a_default_may_be_missing():
    assert taking(Line).revive({"v": {"price": "1", "day": "2030-01-01"}})["v"].count == 1


def test_a_dataclass_that_its_fields_cannot_build_is_refused_at_registration():
    with pytest.raises(UsageError, match="parameter v of handler handler cannot be used: Asking needs b"):
        taking(Asking)


def test_a_dataclass_whose_computed_part_was_changed_is_refused():
    value = Computed(2)
    value.double = 5

    with pytest.raises(PayloadError, match="would not come back equal"):
        taking(Computed).encode((value,), {}, MB)


def test_a_dataclass_that_contains_itself_is_refused():
    tree = Tree(datetime(2030, 1, 1, tzinfo=UTC))
    tree.parent = tree

    with pytest.raises(PayloadError, match="contains itself"):
        taking(Tree).encode((tree,), {}, MB)


def test_partial_functions_methods_and_callable_objects_are_handlers():
    class Sender:
        def run(self, day: date) -> None:
            pass

        def __call__(self, day: date) -> None:
            pass

    def send(day: date, how: str) -> None:
        pass

    for function in (Sender().run, Sender(), functools.partial(send, how="mail")):
        assert codec(function, "x").revive({"day": "2030-01-31"}) == {"day": date(2030, 1, 31)}


def test_a_wrapped_function_is_read_through_its_wrapper():
    @functools.wraps(add)
    def wrapper(*args, **kwargs):
        pass

    with pytest.raises(PayloadError, match="missing the argument a"):
        codec(wrapper).bind((), {})
