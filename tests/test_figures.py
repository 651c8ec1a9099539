"""Figures by handler in shared memory."""

from __future__ import annotations

import os

from queuety.process.figures import BUCKET, BUCKETS_S, ENDINGS, OTHER, SERIES, SUM, Cause, Figures


def total(figures: Figures, known: dict[tuple[str, str], None] | None = None):
    return figures.total({} if known is None else known)


def test_a_run_is_counted_once_in_each_place():
    figures = Figures(1)

    figures.sheets[0].completed("mail", "send", 0.3)

    values = total(figures)["mail", "send"]
    assert values[: len(ENDINGS)] == [1, 0, 0, 0, 0]
    assert values[SUM] == 0.3
    assert [at for at, count in enumerate(values[BUCKET:]) if count] == [BUCKETS_S.index(0.5)]


def test_a_bucket_holds_what_is_as_long_as_its_name():
    figures = Figures(1)
    for seconds in (*BUCKETS_S, 1e9):
        figures.sheets[0].completed("q", "h", seconds)

    assert total(figures)["q", "h"][BUCKET:] == [1] * (len(BUCKETS_S) + 1)


def test_a_failure_is_counted_by_its_end_and_its_cause():
    figures = Figures(1)

    figures.sheets[0].ended("q", "h", ENDINGS.index("retried"), Cause.TIMED_OUT, 2.0)

    values = total(figures)["q", "h"]
    assert (values[1], values[Cause.TIMED_OUT], sum(values[BUCKET:])) == (1, 1, 1)


def test_other_processes_see_what_was_counted():
    figures = Figures(2)
    pid = os.fork()
    if not pid:
        figures.sheets[0].completed("q", "h", 0.1)
        os._exit(0)
    os.waitpid(pid, 0)
    figures.sheets[1].completed("q", "h", 0.1)

    assert total(figures)["q", "h"][0] == 2


def test_the_next_worker_goes_on_where_the_last_one_ended():
    figures = Figures(1)
    for _ in range(2):
        pid = os.fork()
        if not pid:
            figures.sheets[0].completed("q", "h", 0.1)
            os._exit(0)
        os.waitpid(pid, 0)

    assert total(figures)["q", "h"][0] == 2


def test_however_many_handlers_there_are_the_series_are_bounded_and_nothing_is_lost():
    figures = Figures(3)
    for sheet, first in zip(figures.sheets, (0, 50, 500), strict=True):
        for number in range(first, first + 1000):
            sheet.completed("q", f"h{number}", 0.1)

    totals = total(figures)

    assert len(totals) == SERIES + 1
    assert sum(values[0] for values in totals.values()) == 3000
    assert totals[OTHER, OTHER][0] > 2000


def test_what_was_told_apart_stays_so():
    figures = Figures(2)
    known: dict[tuple[str, str], None] = {}
    for number in range(SERIES):
        figures.sheets[1].completed("q", f"h{number}", 0.1)
    before = total(figures, known)
    figures.sheets[0].completed("q", "newcomer", 0.1)  # comes first in the walk

    after = total(figures, known)

    assert {name: after[name] for name in before} == before
    assert after[OTHER, OTHER][0] == 1


def test_a_name_that_is_too_long_is_counted_with_the_others():
    figures = Figures(1)

    figures.sheets[0].completed("q" * 255, "h" * 255, 0.1)

    assert list(total(figures)) == [(OTHER, OTHER)]


def test_names_of_any_script_come_back():
    figures = Figures(1)
    figures.sheets[0].completed("почта", "送信:a/b@c", 0.1)

    assert list(total(figures)) == [("почта", "送信:a/b@c")]
