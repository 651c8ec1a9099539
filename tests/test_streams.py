"""Streams: every road to an end gives exactly one final event, to early and late viewers alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuety import Queuety, StreamEvent
from queuety.errors import JobNotFound, UsageError
from queuety.handle import JobHandle
from tests.daemon import Daemon, daemon, until

APP = "tests.apps.streams:app"


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


class Seen:
    """A viewer in a thread of its own."""

    def __init__(self, app: Queuety, job: JobHandle | int, after: str | None = None) -> None:
        self.events: list[StreamEvent] = []
        self.error: Exception | None = None
        self.stream = app.stream(job, after=after)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for event in self.stream:
                self.events.append(event)
        except Exception as error:  # noqa: BLE001
            self.error = error

    def wait_for(self, kind: str, patience_s: float = 20.0) -> None:
        until(lambda: any(event.type == kind for event in self.events), patience_s, f"{kind}: {self.events}")

    def all(self, patience_s: float = 40.0) -> list[StreamEvent]:
        """Everything up to the end of the stream."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), self.events
        if self.error is not None:
            raise self.error
        return self.events


def told(events: list[StreamEvent]) -> list[tuple[str, str]]:
    return [(event.event_id, event.type) for event in events]


def types(events: list[StreamEvent]) -> list[str]:
    return [event.type.removeprefix("job.") for event in events]


def place(event: StreamEvent) -> tuple[int, ...]:
    return tuple(map(int, event.event_id.split(".")))


def sound(app: Queuety, early: Seen, final: str) -> list[StreamEvent]:
    """An early viewer saw one end, the right one; a late one sees the same, and so does one from any place on."""
    seen = early.all()
    assert [event.type for event in seen if event.final] == [final]
    assert seen[-1].final
    assert [place(event) for event in seen] == sorted({place(event) for event in seen})
    job_id = seen[0].job_id
    late = list(app.stream(job_id))
    assert [(e.event_id, e.type, e.payload) for e in late] == [(e.event_id, e.type, e.payload) for e in seen]
    for count, event in enumerate(seen, 1):
        assert told(list(app.stream(job_id, after=event.event_id))) == told(seen[count:])
    return seen


@pytest.fixture
def pool(database: str, ledger: Path, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts a pool of `streams`, at most one, which the end of the test kills."""
    running = []

    def start(*arguments: str, **env: str) -> Daemon:
        context = daemon(database, *arguments, app=APP, ledger=ledger, log=tmp_path / "log", env=env)
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


# ── every road to an end ──────────────────────────────────────────────────────────────────────────


def test_a_job_that_succeeds_is_started_and_completed(app, pool):
    job = app.enqueue("echo", {"value": 7})
    early = Seen(app, job)
    pool()

    seen = sound(app, early, "job.completed")

    assert told(seen) == [("0.1", "job.started"), ("0.2", "job.completed")]
    assert seen[0].payload == {"handler": "echo", "queue": "default"}
    assert seen[1].payload == {"result": 7, "attempts": 1}


def test_parts_come_in_between_as_they_are_handed_out(app, pool):
    job = app.enqueue("steps", {"count": 5})
    early = Seen(app, job)
    pool()

    seen = sound(app, early, "job.completed")

    assert types(seen) == ["started", *["partial"] * 5, "completed"]
    assert [event.payload["part"] for event in seen[1:-1]] == list(range(5))


def test_a_retry_is_told_with_its_number_and_delay_and_the_last_failure_is_the_end(app, pool):
    job = app.enqueue("fail", {"message": "no"}, max_attempts=3, backoff=[0.2])
    early = Seen(app, job)
    pool()

    seen = sound(app, early, "job.failed")

    assert types(seen) == ["started", "progress", "progress", "failed"]
    assert [event.payload["retry"] for event in seen[1:3]] == [1, 2]
    assert all(100 <= event.payload["nextAttemptInMs"] <= 400 for event in seen[1:3])
    message = "no (attempt 3 of 3)"
    assert seen[-1].payload == {"error": {"type": "ValueError", "message": message}, "attempts": 3}


def test_a_permanent_failure_is_not_retried(app, pool):
    early = Seen(app, app.enqueue("permanent"))
    pool()

    seen = sound(app, early, "job.failed")

    assert types(seen) == ["started", "failed"]
    assert seen[-1].payload["error"] == {
        "type": "Permanent",
        "message": "no such user (attempt 1 of 3, final)",
    }


def test_a_time_limit_is_a_failure(app, pool):
    early = Seen(app, app.enqueue("slow", max_attempts=1))
    pool()

    seen = sound(app, early, "job.failed")

    assert seen[-1].payload["error"]["type"] == "TimeLimitExceeded"


def test_a_job_cancelled_while_it_waits_never_starts(app):
    job = app.enqueue("ok")
    early = Seen(app, job)

    app.cancel(job.id)

    assert told(sound(app, early, "job.canceled")) == [("0.2", "job.canceled")]


def test_a_job_cancelled_while_it_is_parked_never_starts(app, conn):
    job = app.enqueue("ok")
    conn.execute("UPDATE queuety.jobs SET parked_on = 'group:g', parked_at = now()")
    early = Seen(app, job)

    app.cancel(job.id)

    assert told(sound(app, early, "job.canceled")) == [("0.2", "job.canceled")]


@pytest.mark.parametrize("handler", ["polite", "sleep", pytest.param("stubborn", marks=pytest.mark.soak)])
def test_a_running_job_that_is_cancelled_ends_canceled_whether_it_cooperates_or_not(app, pool, handler):
    job = app.enqueue(handler, {"seconds": 60} if handler == "sleep" else {})
    early = Seen(app, job)
    pool()
    early.wait_for("job.started")

    app.cancel(job.id)

    seen = sound(app, early, "job.canceled")
    assert types(seen) == ["started", "progress", "canceled"]
    assert seen[1].payload == {"cancelRequested": True}


def test_a_worker_that_is_killed_costs_an_attempt_which_is_told(app, pool):
    early = Seen(app, app.enqueue("kill_self", max_attempts=2, backoff=[0.1]))
    pool()

    seen = sound(app, early, "job.failed")

    assert types(seen) == ["started", "progress", "failed"]
    assert seen[1].payload["recovered"]
    assert seen[1].payload["retry"] == 1


def test_a_host_that_is_lost_is_told_by_whoever_recovers_its_jobs(app, pool, ledger, conn):
    early = Seen(app, app.enqueue("sleep", {"seconds": 60}, max_attempts=1))
    lost = pool()
    early.wait_for("job.started")
    lost.kill()
    conn.execute("UPDATE queuety.jobs SET lease_until = now() - interval '1 s'")

    app.recover()

    seen = sound(app, early, "job.failed")
    assert seen[-1].payload["error"]["type"] == "WorkerLost"


def test_a_job_buried_by_hand_has_failed(app):
    job = app.enqueue("ok")
    early = Seen(app, job)

    app.bury(job.id, "not wanted")

    seen = sound(app, early, "job.failed")
    assert types(seen) == ["failed"]
    assert seen[0].payload["error"]["message"] == "not wanted"


def test_a_job_without_a_handler_has_failed(app, pool):
    early = Seen(app, app.enqueue("nobody"))
    pool(QUEUETY_UNKNOWN_HANDLER_GRACE="0")

    sound(app, early, "job.failed")


def test_a_job_completed_by_its_own_transaction_is_told_once(app, pool):
    early = Seen(app, app.enqueue("atomic"))
    pool()

    assert types(early.all()) == ["started", "completed"]


def test_a_job_deleted_before_its_end_is_canceled_for_those_who_watch_and_unknown_to_others(app):
    job = app.enqueue("ok", delay=60)
    early = Seen(app, job)
    until(lambda: not early.stream._watch.unknown)

    app.delete(job.id)

    seen = early.all()
    assert told(seen) == [("0.2", "job.canceled")]
    assert seen[0].payload == {"deleted": True}
    with pytest.raises(JobNotFound, match=str(job.id)):
        next(app.stream(job))


def test_deleting_a_job_that_has_ended_tells_nobody_a_second_end(app):
    job = app.enqueue("ok")
    early = Seen(app, job)
    app.cancel(job.id)
    seen = early.all()

    app.delete(job.id)

    assert list(app.stream(job, after=seen[-1].event_id)) == []


# ── after the end ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["bury", "cancel"])
def test_a_retry_by_hand_goes_on_in_the_same_stream_with_an_end_of_its_own(app, pool, end):
    job = app.enqueue("steps", {"count": 2})
    first = Seen(app, job)
    getattr(app, end)(job.id)
    one = first.all()
    app.retry(job.id)
    second = Seen(app, job, after=one[-1].event_id)
    pool()

    two = second.all()

    assert types(two) == ["started", "partial", "partial", "completed"]
    assert place(two[0]) > place(one[-1])
    assert told(list(app.stream(job))) == told([*one, *two])


def test_a_viewer_sees_each_life_of_a_job_that_failed_and_was_retried(app, pool):
    job = app.enqueue("broken", {"parts": 1}, max_attempts=2, backoff=[0.1])
    first = Seen(app, job)
    pool()
    one = first.all()
    app.retry(job.id)

    two = list(app.stream(job, after=one[-1].event_id))

    assert types(one) == ["started", "partial", "progress", "partial", "failed"]
    assert types(two) == types(one)
    late = list(app.stream(job))
    assert told(late) == told([*one, *two])
    assert [event.at for event in late] == sorted(event.at for event in late)


# ── what is told on the way ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fails", [False, True])
def test_parts_are_two_a_second_and_the_last_one_is_told_before_the_end(app, pool, fails):
    job = app.enqueue("paced", {"seconds": 1.2, "fails": fails}, max_attempts=1)
    pool()

    seen = list(app.stream(job))

    parts = [event for event in seen if event.type == "job.partial"]
    last = max(event.payload["step"] for event in seen if event.type == "job.progress")
    assert parts[0].payload == {"found": [1]}
    assert parts[-1].payload == {"found": [last]}  # as it was when it was told
    assert 2 <= len(parts) <= 2 + 2 * (seen[-1].at - seen[0].at).total_seconds()
    assert types(seen)[-3:] == ["partial", "progress", "failed" if fails else "completed"]


def test_a_part_that_was_held_back_is_told_by_a_handler_that_asks_whether_to_stop(app, pool):
    job = app.enqueue("looks")
    early = Seen(app, job)
    pool()

    until(lambda: [event.payload for event in early.events[1:]] == [{"part": 0}, {"part": 1}])

    app.cancel(job.id)
    sound(app, early, "job.canceled")


def test_the_last_part_of_a_transaction_that_completes_the_job_is_told(app, pool):
    job = app.enqueue("parts_of_a_transaction")
    pool()

    seen = list(app.stream(job))

    assert [event.payload for event in seen[1:-1]] == [{"part": 0}, {"part": 2}]


def test_progress_that_is_odd_is_kept_as_told_but_for_what_is_no_number(app, pool):
    job = app.enqueue("odd_progress", max_attempts=1)
    pool()

    seen = list(app.stream(job))

    assert [event.payload for event in seen[1:-1]] == [
        {"message": "3"},
        {"step": -5, "total": 2},
        {"step": 5, "total": 2},
        {"message": "x"},
        {"total": 1, "message": "y"},
        {"step": 1, "total": 0},
    ]
    assert seen[-1].type == "job.completed"


# ── what can be asked for ─────────────────────────────────────────────────────────────────────────


def test_several_jobs_are_followed_in_one_stream_up_to_the_last_end(app, pool):
    jobs = [app.enqueue("steps", {"count": count}) for count in range(4)]
    stream = app.stream(jobs)
    pool("--workers=2")

    seen = list(stream)

    for job in jobs:
        assert told([e for e in seen if e.job_id == job.id]) == told(list(app.stream(job)))


def test_several_jobs_go_on_from_a_place_each(app):
    one, two = app.enqueue("ok"), app.enqueue("ok")
    app.cancel(one.id)
    app.cancel(two.id)

    assert [event.job_id for event in app.stream([one, two], after={one.id: "0.2"})] == [two.id]


def test_a_stream_of_no_jobs_is_over(app):
    assert list(app.stream([])) == []


@pytest.mark.parametrize(
    "after", ["x", "1.", "1.3", "-1.0", "1.0.0", "9" * 20, "\N{FULLWIDTH DIGIT NINE}.0", 1.5]
)
def test_what_is_no_place_is_refused_before_anything_is_opened(app, after):
    with pytest.raises(UsageError, match="no event's id"):
        app.stream(1, after=after)

    assert app._listener is None or app._listener._thread is None


def test_a_place_beyond_the_end_is_told_the_true_end_and_nothing_that_is_made_up(app, pool):
    job = app.enqueue("broken", {"parts": 1}, max_attempts=1)
    early = Seen(app, job)
    pool()
    seen = early.all()

    assert told(list(app.stream(job, after="999999999.0"))) == told(seen[-1:])
    assert list(app.stream(job, after="999999999.2")) == []
    assert list(app.stream(job, after=seen[-1].event_id)) == []


@pytest.mark.parametrize("job", [0.5, "1", None, 2**63, True])
def test_what_is_no_id_of_a_job_is_refused(app, job):
    with pytest.raises(UsageError):
        app.stream(job)


def test_one_place_for_several_jobs_is_refused(app):
    with pytest.raises(UsageError, match="there are 2"):
        app.stream([1, 2], after="1.0")
    with pytest.raises(UsageError, match="none of the jobs"):
        app.stream([1, 2], after={3: "1.0"})


def test_an_event_is_told_to_other_programs_with_texts_for_ids_and_a_time_in_utc(app):
    job = app.enqueue("ok")
    app.cancel(job.id)

    told = next(app.stream(job)).as_json()

    assert list(told) == ["event_id", "type", "job_id", "timestamp", "payload"]
    assert told["job_id"] == str(job.id)
    assert told["timestamp"].endswith("Z")
