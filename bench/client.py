"""`python -m bench.client WAY JOBS`: a process that writes jobs, by our API or past it.

single: `handler.enqueue()`, one transaction each.  insert: a prepared INSERT with the same columns, a commit each.
bulk: `handler.enqueue_many`.  copy: one COPY of lines made before, with the same columns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import psycopg

from bench.application import app, noop
from bench.speech import say, wait_for_go

INSERT = """
INSERT INTO queuety.jobs (handler, payload, queue, priority, max_attempts, available_at, tags, unique_key, backoff)
VALUES (%s, %s, %s, %s, %s, now(), %s, %s, %s)
"""
VALUES = ("noop", "{}", "default", 2, 3, None, None, None)
COPY = "COPY queuety.jobs (handler, payload, queue, priority, max_attempts) FROM STDIN"


def single(jobs: int) -> Callable[[], object]:
    noop.enqueue()  # connect, prepare

    def run() -> None:
        for _ in range(jobs):
            noop.enqueue()

    return run


def insert(jobs: int) -> Callable[[], object]:
    conn = psycopg.connect(app.url, autocommit=True)
    conn.execute(INSERT, VALUES, prepare=True)

    def run() -> None:
        for _ in range(jobs):
            conn.execute(INSERT, VALUES, prepare=True)

    return run


def bulk(jobs: int) -> Callable[[], object]:
    noop.enqueue()
    return lambda: noop.enqueue_many({} for _ in range(jobs))


def copy(jobs: int) -> Callable[[], object]:
    conn = psycopg.connect(app.url, autocommit=True)
    lines = "noop\t{}\tdefault\t2\t3\n" * jobs

    def run() -> None:
        with conn.cursor().copy(COPY) as stream:
            stream.write(lines)

    return run


def main() -> int:
    ways = {"single": single, "insert": insert, "bulk": bulk, "copy": copy}
    run = ways[sys.argv[1]](int(sys.argv[2]))
    wait_for_go()
    run()
    say(ended=time.monotonic())
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
