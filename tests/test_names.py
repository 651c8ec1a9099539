from __future__ import annotations

import enum
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.errors import UsageError
from queuety.names import check_name, check_queue, check_unique_key, queue_list, weighted_queues

KINDS = ("queue", "handler", "group", "key", "tag")


@pytest.mark.parametrize(
    "name", ["a", "UPPER", "_", "a-b.c", "9", "한국어", "عربى", "हिन्दी", "a" * 255, "é", "中文"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_letters_and_digits_of_every_script_make_a_name(kind, name):
    assert check_name(kind, name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "\n", "\t", "a b", "a,b", "*", "o'hara", 'a"b', "%s", "a%", "a\x00b", "\x1b[1m", "\ud800",
        "😀", "a" * 256, "a" * 10**7, "a\nb", "-", "-q", ".", "..", "a\u200bb", "\u3164", "a\ufe0f",
        "a\uff0cb", "a;b", "a\\b",
        "a\u202eb", "²",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_used_everywhere_is_refused_everywhere(kind, name):
    with pytest.raises(UsageError) as caught:
        check_name(kind, name)

    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"], True, object()])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(UsageError, match="must be a text"):
        check_name("queue", value)


@pytest.mark.parametrize("name", ["a:b", "a/b", "a@b", "a+b", "#1"])
def test_signs_of_handlers_and_tags_are_refused_in_a_queue(name):
    assert check_name("tag", name) == name
    with pytest.raises(UsageError):
        check_queue(name)


def test_the_first_bad_character_and_its_position_are_named():
    with pytest.raises(
        UsageError, match=r"the queue name 'ab c\*' cannot be used: ' ' \(U\+0020\) at position 3"
    ):
        check_queue("ab c*")


def test_a_name_is_trimmed():
    assert check_queue("  mail\n") == "mail"


def test_two_spellings_of_one_word_are_one_name():
    assert check_queue("e\u0301te") == check_queue("\u00e9te")
    assert check_queue(unicodedata.normalize("NFD", "한글")) == "한글"


def test_a_text_enum_gives_its_plain_value():
    class Queue(enum.StrEnum):
        MAIL = "mail"

    assert type(check_queue(Queue.MAIL)) is str
    assert check_queue(Queue.MAIL) == "mail"


def test_further_signs_can_be_allowed():
    assert check_name("tag", "a=b", allow="=") == "a=b"


@given(st.text(max_size=30))
def test_an_accepted_name_is_accepted_as_it_is_the_next_time(text):
    try:
        name = check_name("handler", text)
    except UsageError:
        return

    assert check_name("handler", name) == name
    assert name.isprintable()


def test_a_queue_list_keeps_its_order_and_loses_its_blanks():
    assert queue_list("critical, default ,low") == ("critical", "default", "low")
    assert queue_list(["b", " a "]) == ("b", "a")


def test_a_queue_named_twice_counts_at_its_first_place():
    assert queue_list("a,b,a") == ("a", "b")


@pytest.mark.parametrize(
    "value", ["", ",", "a,", "a,,b", [], None, 5, [None], "a b", ["a,b"], b"a", {"a": 1}]
)
def test_a_queue_list_that_cannot_be_meant_is_refused(value):
    with pytest.raises(UsageError):
        queue_list(value)


def test_weights_are_refused_where_only_names_are_meant():
    with pytest.raises(UsageError, match="'a:3' is not a queue's name") as caught:
        queue_list("b,a:3")

    assert caught.value.hint == "give names only: weights are for `work` and `flush`"


def test_a_queue_list_may_hold_weights_behind_the_strict_ones():
    expected = {"critical": 0, "default": 3, "low": 1}

    assert weighted_queues("critical, default : 3,low:1") == expected
    assert weighted_queues(["critical", "default:3", " low:1"]) == expected
    assert list(weighted_queues("b:1,a:1,b:1")) == ["b", "a"]
    assert weighted_queues("a,b") == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a:0", "the weight of queue 'a'='0' is out of range"),
        ("a:1001", "out of range"),
        ("a:x", "not a whole number"),
        ("a:", "not a whole number"),
        ("a:1.5", "not a whole number"),
        (":1", "is empty"),
        ("a:1:2", "position 2"),
        ("a:1,a:2", "named twice"),
        ("a,a:2", "named twice"),
        ("a:1,b", "queue 'b' has no weight, but stands behind queues that have one"),
        (["a:1,b:1"], "position 2"),
        ({"a": 1}, "not dict"),
        ("", "is empty"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(value, message):
    with pytest.raises(UsageError, match=message):
        weighted_queues(value)


@pytest.mark.parametrize("key", ["user 5, order 7", "a%b*", "😀", "👩‍👩‍👧", "o'hara", "가"])
def test_a_unique_key_is_any_printable_text(key):
    assert check_unique_key(key) == key


@pytest.mark.parametrize("key", ["", " ", "a\x00b", "a\nb", "\ud800", "x" * 256, None, 5, b"k", "a\u2028b"])
def test_a_unique_key_that_cannot_be_stored_or_read_is_refused(key):
    with pytest.raises(UsageError, match="unique key"):
        check_unique_key(key)
