from __future__ import annotations

import enum
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import PayloadError
from queuety.strict import dumps, loads, read

MB = 1 << 20
JSON_TEXTS = st.text(st.sampled_from('au0\\"/ \n\x01\x7f\u00e9\u2028\ud55c\uffff\U0001f600'), max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | JSON_TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXTS, inner, max_size=4),
    max_leaves=12,
)

Point = namedtuple("Point", "x y")


class Text(str):
    pass


class Number(int):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


@dataclass
class Item:
    a: int


def write(value, limit_bytes=MB):
    return dumps(value, limit_bytes=limit_bytes)


def nested(levels):
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def same(left, right):
    """Equality that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)


@given(JSON_VALUES)
def test_what_is_accepted_arrives_as_it_was(value):
    assert same(loads(write(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "A": 2}, 2**63, 10**40, -0.0, 1e308, 5e-324, 0.1, "\ud55c\uae00", "😀",
        "\\u0000", "\u2028", "\x7f", {"": ""}, [], {}, None, True, "\x1f",
    ],
)  # fmt: skip
def test_unusual_values_arrive_as_they_were(value):
    assert same(loads(write({"v": value})), {"v": value})


def test_an_ordered_dict_keeps_its_order():
    assert write(OrderedDict([("b", 1), ("a", 2)])) == '{"b":1,"a":2}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "payload.items[3].price is nan"),
        (math.inf, "payload.items[3].price is inf"),
        ("a\0b", "payload.items[3].price contains a NUL character at position 2"),
        ("ab\ud800", "payload.items[3].price contains half a character (lone surrogate) at position 3"),
        (datetime(2030, 1, 1), "payload.items[3].price is a datetime, which JSON cannot carry"),
        (date(2030, 1, 1), "payload.items[3].price is a date, which JSON cannot carry"),
        (timedelta(1), "payload.items[3].price is a timedelta, which JSON cannot carry"),
        (Decimal("1.5"), "payload.items[3].price is a Decimal, which JSON cannot carry"),
        (Decimal("NaN"), "payload.items[3].price is a Decimal, which JSON cannot carry"),
        (UUID(int=1), "payload.items[3].price is a UUID, which JSON cannot carry"),
        ({1}, "payload.items[3].price is a set, which JSON cannot carry"),
        (b"a", "payload.items[3].price is a bytes, which JSON cannot carry"),
        ((1, 2), "payload.items[3].price is a tuple, which JSON cannot carry"),
        (Point(1, 2), "payload.items[3].price is a Point, which JSON cannot carry"),
        (Item(1), "payload.items[3].price is an Item, which JSON cannot carry"),
        (Level.LOW, "payload.items[3].price is a Level, which JSON cannot carry"),
        (Name.A, "payload.items[3].price is a Name, which JSON cannot carry"),
        (Text("a"), "payload.items[3].price is a Text, which would come back as a plain str"),
        (Number(1), "payload.items[3].price is a Number, which would come back as a plain int"),
        (Counter(), "payload.items[3].price is a Counter, which would come back as a plain dict"),
        (defaultdict(int), "payload.items[3].price is a defaultdict, which would come back as a plain dict"),
        (object(), "payload.items[3].price is an object, which JSON cannot carry"),
        ({1: "a"}, "payload.items[3].price has a key that is an int"),
        ({None: "a"}, "payload.items[3].price has a key that is a NoneType"),
        ({True: "a"}, "payload.items[3].price has a key that is a bool"),
        ({Text("k"): "a"}, "payload.items[3].price has a key that is a Text"),
        ({"a\0": 1}, "a key of payload.items[3].price contains a NUL character"),
        ({"\ud800": 1}, "a key of payload.items[3].price contains half a character"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(value, message):
    with pytest.raises(PayloadError) as caught:
        write({"items": [1, 2, 3, {"ok": 1, "price": value}]})

    assert caught.value.message.startswith(message)
    assert caught.value.hint


@pytest.mark.parametrize("value", [(1,), {1}, math.nan, "\0", "\ud800", Level.LOW, Text("a"), b"", object()])
def test_a_bare_value_is_as_strict_as_one_within(value):
    with pytest.raises(PayloadError, match=r"^result "):
        dumps(value, limit_bytes=MB, what="result")


def test_a_place_with_odd_keys_is_quoted():
    with pytest.raises(PayloadError, match=r"payload\['a b\\n'\]\['\\u20ac-'\] is nan"):
        write({"a b\n": {"€-": math.nan}})


def test_a_message_is_short_and_printable_however_long_the_keys():
    with pytest.raises(PayloadError) as caught:
        write({"k" * 10_000: {"\x1b[1m" * 1000: math.nan}})

    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_200_levels_are_accepted():
    assert loads(write(nested(200))) == nested(200)


@pytest.mark.parametrize("levels", [201, 1000, 100_000])
def test_more_than_200_levels_are_refused(levels):
    with pytest.raises(PayloadError, match="more than 200 levels"):
        write(nested(levels))


def test_a_value_that_contains_itself_is_refused():
    value: dict[str, object] = {}
    value["self"] = [value]

    with pytest.raises(PayloadError, match="contains itself"):
        write(value)


def test_a_value_that_contains_itself_twice_is_refused_soon():
    value: list[object] = []
    value += [value, value]

    with pytest.raises(PayloadError):
        write(value, limit_bytes=50_000)


def test_lists_that_share_each_other_a_billion_times_are_refused_soon():
    value: list[object] = []
    for _ in range(60):
        value = [value, value]

    with pytest.raises(PayloadError, match="more than 50,000 bytes"):
        write(value, limit_bytes=50_000)


def test_the_limit_counts_bytes_of_utf8():
    assert write("\ud55c" * 10, limit_bytes=32)
    with pytest.raises(PayloadError, match="payload has 32 bytes as JSON; 31 are allowed"):
        write("\ud55c" * 10, limit_bytes=31)


@given(JSON_VALUES)
def test_the_limit_is_exact(value):
    length = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())

    write(value, limit_bytes=length)
    with pytest.raises(PayloadError):
        write(value, limit_bytes=length - 1)


def test_long_integers_are_refused_even_where_python_would_write_them():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(PayloadError, match="more than 4,300 digits"):
            write({"a": "x" * 3000, "n": -(10**4300)})
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("number", [10**4299, -(10**4299)], ids=["positive", "negative"])
def test_integers_of_4300_digits_arrive_as_they_were(number):
    assert loads(write([number])) == [number]


@pytest.mark.parametrize("number", [10**4300, -(10**4300), 1 << 10**6], ids=["positive", "negative", "huge"])
def test_longer_integers_are_refused_with_their_place(number):
    with pytest.raises(PayloadError, match=r"payload\.n is an integer of more than 4,300 digits"):
        write({"n": number})


def test_a_long_text_of_digits_is_no_long_integer():
    assert loads(write(["9" * 10_000])) == ["9" * 10_000]


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "", "{", "[1,]", "[" * 100_000, "9" * 5000, "'a'"])
def test_json_that_cannot_be_read_is_refused(text):
    with pytest.raises(PayloadError, match="the stored JSON"):
        loads(text)


def test_an_object_from_outside_is_read():
    assert read('{"a": [1, null]}', limit_bytes=MB) == {"a": [1, None]}


@pytest.mark.parametrize("text", ["[]", "5", '"a"', "null"])
def test_json_from_outside_that_is_no_object_is_refused(text):
    with pytest.raises(PayloadError, match="not an object"):
        read(text, limit_bytes=MB)


def test_a_key_given_twice_is_refused():
    with pytest.raises(PayloadError, match="the key 'a' is given twice"):
        read('{"x": {"a": 1, "a": 2}}', limit_bytes=MB)


def test_json_from_outside_over_the_limit_is_not_even_read():
    with pytest.raises(PayloadError, match="11 bytes"):
        read("[" * 11, limit_bytes=10)


def test_a_text_that_is_too_large_by_itself_is_refused_with_its_size():
    with pytest.raises(PayloadError, match="5,000,000"):
        dumps("x" * 5_000_000, limit_bytes=1_000_000, what="result")
