from __future__ import annotations

import time
import traceback
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.texts import MAX_MESSAGE, MAX_TRACEBACK, clean, error_info, middle_cut


def raised(function):
    """The exception that a function raises, with its traceback."""
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


class UnprintableError(Exception):
    def __str__(self):
        raise SystemExit("no")


@given(st.text(st.characters(exclude_categories=[]), max_size=200), st.integers(0, 100))
def test_any_text_becomes_storable_and_no_longer_than_the_limit(text, limit):
    for cut in (clean(text, limit), middle_cut(text, limit)):
        assert len(cut) <= limit
        assert "\0" not in cut
        cut.encode()


@given(st.text(max_size=50))
def test_a_clean_short_text_stays_as_it_is(text):
    if "password" not in text.lower() and "\0" not in text:
        assert clean(text, 50) == middle_cut(text, 50) == text


def test_nul_and_lone_surrogates_are_replaced():
    assert clean("a\0b\ud800c", 10) == "a\ufffdb\ufffdc"


def test_a_cut_text_ends_with_a_mark_that_tells_its_length():
    assert len(clean("x" * 5000, 30)) == 30
    assert clean("x" * 5000, 30).endswith("… [5,000 characters]")


def test_a_middle_cut_keeps_the_head_and_the_tail():
    text = middle_cut("head" + "x" * 50_000 + "tail", 1000)

    assert len(text) == 1000
    assert text.startswith("head")
    assert text.endswith("tail")
    assert "the middle left out" in text


@pytest.mark.alone
def test_a_text_of_50_megabytes_is_cut_at_once():
    text = "x\0" * 25_000_000
    began = time.perf_counter()

    clean(text, 4000)
    middle_cut(text, 16_000)

    assert time.perf_counter() - began < 0.1


@pytest.mark.parametrize("before", range(0, 60, 3))
def test_a_password_that_the_cut_would_halve_is_hidden(before):
    text = "x" * before + " postgresql://user:topsecret@host/db " + "y" * 10_000

    assert "topsec" not in clean(text, 60)


@pytest.mark.parametrize("after", range(0, 60, 3))
def test_a_password_that_a_middle_cut_would_halve_is_hidden(after):
    text = "y" * 10_000 + " postgresql://user:topsecret@host/db " + "x" * after

    assert "secret@" not in middle_cut(text, 120)


def test_an_error_is_told_by_type_message_and_traceback():
    error = raised(lambda: {"other": 1}["key"])

    info = error_info(error)

    assert (info.type, info.message) == ("KeyError", "'key'")
    assert info.traceback is not None
    assert info.traceback.startswith("Traceback (most recent call last):\n")
    assert info.traceback.endswith("KeyError: 'key'\n")
    assert "test_texts.py" in info.traceback


def test_a_chain_of_causes_reads_as_python_prints_it():
    def fail():
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904
        except ValueError as error:
            raise RuntimeError("third") from error

    error = raised(fail)

    ours = (error_info(error).traceback or "").splitlines()
    pythons = [line for line in "".join(traceback.format_exception(error)).splitlines() if line.strip(" ~^")]
    assert [line for line in ours if line] == pythons


def test_a_suppressed_context_is_not_told():
    def fail():
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None

    assert "hidden" not in (error_info(raised(fail)).traceback or "")


def test_frames_of_the_caller_can_be_left_out():
    info = error_info(raised(lambda: 1 / 0), skip=1)

    assert "in raised" not in (info.traceback or "")
    assert "in <lambda>" in (info.traceback or "")


def test_notes_are_part_of_the_traceback():
    error = ValueError("x")
    error.add_note("look here")

    assert "look here" in (error_info(error).traceback or "")


def test_the_members_of_a_group_are_named():
    error = ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    assert "ValueError: one" in (error_info(error).traceback or "")
    assert "KeyError: 'two'" in (error_info(error).traceback or "")


def test_an_unprintable_error_is_named_by_its_type():
    info = error_info(raised(lambda: (_ for _ in ()).throw(UnprintableError())))

    assert info.type == "UnprintableError"
    assert info.message == "<UnprintableError: its text cannot be had, SystemExit>"
    assert "UnprintableError" in (info.traceback or "")


def test_an_error_with_an_endless_name_can_be_stored():
    error = type("A" * 1000, (Exception,), {"__module__": 5})("b")

    assert len(error_info(error).type) == 255


def test_a_message_of_50_megabytes_is_cut_and_not_kept():
    error = raised(lambda: (_ for _ in ()).throw(ValueError("x" * 50_000_000)))
    tracemalloc.start()
    info = error_info(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(info.message) == MAX_MESSAGE
    assert "50,000,000 characters" in info.message
    assert len(info.traceback or "") <= MAX_TRACEBACK
    assert peak < 5_000_000


@pytest.mark.alone
def test_100_000_chained_causes_are_told_in_short():
    error = ValueError(0)
    for number in range(1, 100_000):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    began = time.perf_counter()

    text = error_info(error).traceback or ""

    assert time.perf_counter() - began < 0.5
    assert text.endswith("ValueError: 99999\n")
    assert "more errors in the chain" in text


def test_the_first_cause_of_a_long_chain_is_told():
    error = ValueError("the very first")
    for number in range(100):
        following = ValueError(number)
        following.__context__ = error
        error = following

    text = error_info(error).traceback or ""

    assert text.startswith("ValueError: the very first\n")
    assert "[93 more errors in the chain]" in text


def test_a_chain_that_bites_its_tail_comes_to_an_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert (error_info(one).traceback or "").count("ValueError") == 2


def test_a_deep_recursion_shows_its_two_ends():
    def deeper(level):
        deeper(level + 1)

    text = error_info(raised(lambda: deeper(0))).traceback or ""

    assert "in raised" in text
    assert "more frames" in text
    assert "RecursionError" in text
    assert len(text) <= MAX_TRACEBACK


def test_a_password_in_a_message_is_hidden():
    info = error_info(ValueError("cannot connect to postgresql://u:pw@h/db"))

    assert "pw" not in info.message + (info.traceback or "")
