"""Every statement finds its rows by the index that its header names, however many others there are.

The tables hold a large number of rows of each kind; the planner knows the truth, an old truth, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuety.model import Complete
from queuety.policy.scale import COUNTED
from queuety.store import claims
from queuety.store.batch import Batch
from queuety.store.claims import Want
from queuety.store.connect import Connection, connect, pin
from queuety.store.lanes import Lanes
from queuety.store.statements import array, statement

LARGE = ("profiles", "jobs", "finished_jobs", "buried_jobs", "job_events", "unique_keys")
TABLES = (*LARGE, "queues", "sleepers", "starts")
DUE = 3000
SIZES = (1, 2, 4, 16, 50, 200, 500)

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_IDS = array(list(range(1, 51)))

# What the statements are asked with; a name means the same in all of them.
VALUES: dict[str, Any] = {
    "after_at": "{-Infinity,-Infinity}",
    "after_id": "{0,0}",
    "lines": "{1,1}",
    "caps": "{10}",
    "ago": 0.1,
    "budgeted": "{}",
    "began": array([0.0] * 50),
    "before": 4e9,
    "causes": ["retried"] * 50,
    "counted": [True] * 50,
    "days": 30,
    "delays": array([1.0] * 50),
    "ended": array([0.0] * 50),
    "error": '{"type": "x"}',
    "errors": "{" + ",".join(["NULL"] * 50) + "}",
    "first": 1000,
    "from_key": "handler:",
    "grace": 60.0,
    "handler": "ok",
    "handlers": ["h7", "h8"],
    "id": 17,
    "ids": _IDS,
    "jobs": '[{"id": 17, "handler": "ok", "payload": "{}", "queue": "q7", "priority": 2, "max_attempts": 3}]',
    "key": "handler:gone",
    "keys": ["handler:gone"] * 50,
    "after": "key 5",
    "behind": array([0] * 50),
    "kind": "progress",
    "data": "{}",
    "bytes": 65536,
    "last": 10**15,
    "late": 60.0,
    "lease": 7,
    "leases": "{7,8}",
    "limit": 100,
    "none": [],
    "limits": None,
    "priorities": "{2,3}",
    "queue": "q7",
    "queues": ["default", "default"],
    "result": "1",
    "results": "{" + ",".join(["NULL"] * 50) + "}",
    "size": 50,
    "skip": "{}",
    "stale": 60.0,
    "state": None,
    "worker": "w#1",
    "delay": None,
    "due": None,
    "tags": None,
    "unique_key": "a key",
    "unique_until": "end",
    "unique_for": None,
    "locking": False,
    "backoff": None,
    "payload": "{}",
    "priority": 2,
    "max_attempts": 3,
    "reason": None,
    "until": None,
    "to_key": "handler;",
    "window": 60.0,
}

# How a statement is run: within a turn, in the keeper's session, steered, or plainly. `recover` by hand is plain.
TURN = {"claim", "complete", "again", "bury", "give_back", "park", "cancel_run", "strays", "began"}
KEEPER = {
    "depths",
    "waiting", "unpark_here", "profiles", "free_keys", "prune_keys",
    "held", "expired", "renew", "cancels", "look", "left", "unpark", "overdue", "prune_buried", "complete",
    "again", "bury", "give_back", "cancel_run",
}  # fmt: skip
STEERED = {"purge_finished", "purge_buried", "requeue_buried"}
PLAIN = {
    "ask_cancel", "bury_pending", "cancel_pending", "delete", "requeue_cancelled", "keep_result", "resume",
    "profiles", "pause", "insert", "insert_many", "insert_plain", "insert_unique", "replace",
    "expired", "again", "bury", "cancel_run", "renew", "note", "glimpse", "readers",
}  # fmt: skip


def header(name: str) -> str:
    text = (resources.files("queuety.store") / "sql" / f"{name}.sql").read_text()
    return " ".join(line[3:] for line in text.splitlines() if line.startswith("-- "))


def with_an_index() -> list[str]:
    folder = resources.files("queuety.store") / "sql"
    names = sorted(file.name.removesuffix(".sql") for file in folder.iterdir() if file.name.endswith(".sql"))
    return [name for name in names if "Index:" in header(name)]


def named_indexes(name: str) -> set[str]:
    """The indexes that the header promises."""
    return set(re.findall(rf"\b(?:{'|'.join(TABLES)})_[a-z_]+\b", header(name).split("Index:")[1]))


def ways() -> list[tuple[str, str]]:
    found = []
    for name in with_an_index():
        for way, those in (("turn", TURN), ("keeper", KEEPER), ("steered", STEERED), ("plain", PLAIN)):
            if name in those:
                found.append((name, way))
    return found


def test_every_statement_with_an_index_is_looked_at():
    assert {name for name, _ in ways()} == set(with_an_index())


# ── the rows ──────────────────────────────────────────────────────────────────────────────────────


def fill(conn: Connection, rows: int) -> None:
    """So many jobs that are due later, in another queue, parked, paused, finished and buried; a few that are due."""
    for table in ("jobs", "buried_jobs", "queues", "sleepers", "profiles"):
        conn.execute(
            sql.SQL("ALTER TABLE queuety.{} SET (autovacuum_enabled = off)").format(sql.Identifier(table))
        )
    conn.execute("SELECT queuety.make_partitions(2)")
    conn.execute("ANALYZE")
    conn.execute("INSERT INTO queuety.queues (name) SELECT 'q' || n FROM generate_series(1, 5000) AS n")
    conn.execute(
        "INSERT INTO queuety.profiles (handler, minute, runs, seconds, durations) "
        "SELECT 'h' || n %% 100, now() - n * interval '1 s', 1, 1, array_fill(1::bigint, ARRAY[64]) "
        "FROM generate_series(1, %s) AS n",
        [rows // 10],
    )
    conn.execute("INSERT INTO queuety.sleepers SELECT n, 'q' || n FROM generate_series(1, 5000) AS n")
    conn.execute("INSERT INTO queuety.queues (name, paused_at) VALUES ('paused', now())")
    conn.execute(
        "INSERT INTO queuety.starts SELECT 'rate:' || n % 9, n, now(), 1 FROM generate_series(1, 5000) AS n"
    )
    kinds = {
        "later": "'default', now() + interval '1 day' + n * interval '1 s', NULL, NULL",
        "elsewhere": "'elsewhere', now(), NULL, NULL",
        "parked": "'default', now(), 'handler:gone', now()",
        "paused": "'paused', now(), NULL, NULL",
    }
    for values in kinds.values():
        conn.execute(
            "INSERT INTO queuety.jobs (handler, queue, available_at, parked_on, parked_at) "
            f"SELECT 'ok', {values} FROM generate_series(1, %s) AS n",
            [rows],
        )
    conn.execute(
        "INSERT INTO queuety.jobs (handler, priority, available_at) "
        "SELECT 'ok', 2 + n %% 2, now() - n * interval '1 ms' FROM generate_series(1, %s) AS n",
        [DUE],
    )
    conn.execute(
        "INSERT INTO queuety.jobs (handler, state, lease, lease_until, worker, attempts) "
        "SELECT 'ok', 'processing', n, now() + interval '1 h', 'w#' || n, 1 FROM generate_series(1, 500) AS n"
    )
    conn.execute(
        "INSERT INTO queuety.finished_jobs (id, finished_at, available_at, created_at, attempts, max_attempts, "
        "priority, state, queue, handler, payload) SELECT 10000000 + n, now() + (n %% 3) * interval '1 day', now(), "
        "now(), 1, 3, 2, 'completed', 'default', 'ok', '{}' FROM generate_series(1, %s) AS n",
        [rows],
    )
    conn.execute(
        "INSERT INTO queuety.buried_jobs (id, finished_at, available_at, created_at, attempts, max_attempts, "
        "priority, queue, handler, payload) SELECT 90000000 + n, now(), now(), now(), 1, 3, 2, 'default', 'ok', '{}' "
        "FROM generate_series(1, %s) AS n",
        [rows],
    )
    conn.execute(
        "INSERT INTO queuety.job_events (job_id, at, type) SELECT n, now() + (n %% 3) * interval '1 day', 'progress' "
        "FROM generate_series(1, %s) AS n",
        [rows],
    )
    conn.execute(
        "INSERT INTO queuety.unique_keys (key, job_id, until) SELECT 'key ' || n, n, 'end' "
        "FROM generate_series(1, %s) AS n",
        [rows],
    )


FRESH, STALE, NONE = "fresh", "stale", "none"


def set_statistics(conn: Connection, kind: str) -> None:
    """What the planner believes: all of it, that the tables are as good as empty, or nothing."""
    if kind == FRESH:
        conn.execute("ANALYZE")
        return
    ours = "SELECT c.oid FROM pg_class AS c WHERE c.relnamespace = 'queuety'::regnamespace AND c.relkind IN ('r', 'i')"
    conn.execute(f"DELETE FROM pg_statistic WHERE starelid IN ({ours})")
    tuples, pages = (1, 1) if kind == STALE else (-1, 0)
    conn.execute(
        f"UPDATE pg_class SET reltuples = %s, relpages = %s WHERE oid IN ({ours})",
        [tuples, pages],
    )


@pytest.fixture(
    scope="module",
    params=[30_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(1500)])],
)
def filled(request: pytest.FixtureRequest, server: str, template: str) -> Iterator[str]:
    from tests.conftest import _database

    with _database(server, template) as url:
        with connect(url) as conn:
            fill(conn, request.param)
        yield url


@pytest.fixture(scope="module", params=[FRESH, STALE, NONE])
def knowing(request: pytest.FixtureRequest, filled: str) -> str:
    with connect(filled) as conn:
        set_statistics(conn, request.param)
    return filled


@pytest.fixture
def conn(knowing: str) -> Iterator[Connection]:
    with connect(knowing) as connection:
        yield connection


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────


def explained(
    conn: Connection, name: str, *, generic: bool, run: bool = False, **given: Any
) -> dict[str, Any]:
    """The plan of a prepared statement, generic or for these values."""
    text = statement(name)
    names = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
    numbered = _PLACEHOLDER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    values = {**VALUES, **given}
    conn.execute(sql.SQL("DEALLOCATE ALL"))
    conn.execute(f"PREPARE it AS {numbered}".encode())
    if generic:
        conn.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")
    options = "ANALYZE, BUFFERS, FORMAT JSON" if run else "FORMAT JSON"
    row = conn.execute(
        sql.SQL("EXPLAIN ({}) EXECUTE it ({})").format(
            sql.SQL(options), sql.SQL(", ").join(sql.Literal(values[one]) for one in names)
        )
    ).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def used_indexes(conn: Connection, plan: dict[str, Any]) -> set[str]:
    """Indexes by the names of their parents, where they are a partition's."""
    parents: dict[str, str] = dict(
        conn.execute(
            "SELECT c.relname, p.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid "
            "JOIN pg_class AS p ON p.oid = i.inhparent WHERE c.relkind IN ('i', 'I')"
        ).fetchall()
    )
    found: set[str] = set()
    for node in nodes(plan):
        found.update(node.get("Conflict Arbiter Indexes", []))
        if "Index Name" in node:
            found.add(parents.get(node["Index Name"], node["Index Name"]))
    return found


def whole_reads(conn: Connection, plan: dict[str, Any]) -> list[str]:
    """Large tables, or their partitions, that the plan reads from end to end; those without rows may be."""
    read = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    return [
        name
        for name in sorted(read)
        if name.startswith(LARGE)
        and conn.execute("SELECT pg_relation_size(%s::regclass)", [f"queuety.{name}"]).fetchone() != (0,)
    ]


def set_out(conn: Connection, way: str) -> bool:
    """Set the transaction out as it is for that way; True if its plans are generic."""
    if way == "turn":
        conn.execute(statement("pin"))
        return True
    if way == "keeper":
        pin(conn)
        return True
    if way == "steered":
        conn.execute(statement("steer"))
    return False


@pytest.mark.parametrize(("name", "way"), ways())
def test_a_statement_uses_the_indexes_that_its_header_names(conn, name, way):
    with conn.transaction(force_rollback=True):
        generic = set_out(conn, way)
        plans = [explained(conn, name, generic=generic)["Plan"]]
        if way == "plain":
            plans.append(explained(conn, name, generic=True)["Plan"])

        for plan in plans:
            assert not whole_reads(conn, plan)
            # Sleepers are few: the planner may as well read them all.
            assert named_indexes(name) - {"sleepers_pkey"} <= used_indexes(conn, plan)


# ── what a claim reads ────────────────────────────────────────────────────────────────────────────


def blocks(plan: dict[str, Any]) -> int:
    """Pages touched, in memory or not. No clock: the same on any machine."""
    top = plan["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def lanes(*queues: str) -> dict[str, Any]:
    return Lanes(queues).values()


@pytest.mark.parametrize("size", SIZES)
def test_a_claim_reads_little_at_every_size(conn, size):
    with conn.transaction(force_rollback=True):
        conn.execute(statement("pin"))
        plan = explained(
            conn, "claim", generic=True, run=True, size=size, **lanes("empty", "paused", "default")
        )

        assert plan["Plan"]["Actual Rows"] == size
        assert not whole_reads(conn, plan["Plan"])
        assert blocks(plan) < 400 + 40 * size


def test_a_claim_that_finds_nothing_reads_next_to_nothing(conn):
    with conn.transaction(force_rollback=True):
        conn.execute(statement("pin"))
        plan = explained(conn, "claim", generic=True, run=True, size=500, **lanes("empty", "paused"))

        assert plan["Plan"]["Actual Rows"] == 0
        assert blocks(plan) < 100


@pytest.mark.parametrize("size", SIZES)
def test_a_claim_of_several_lines_reads_little_and_keeps_to_their_caps(conn, size):
    own = Lanes(("empty", "paused", "elsewhere", "default"))
    own.arrange([(("empty", "paused"), size), (("default",), max(1, size // 4)), (("elsewhere",), size)])
    with conn.transaction(force_rollback=True):
        conn.execute(statement("pin"))
        plan = explained(conn, "claim", generic=True, run=True, size=size, **own.values())

        assert plan["Plan"]["Actual Rows"] == size
        assert not whole_reads(conn, plan["Plan"])
        assert blocks(plan) < 400 + 40 * size


def test_a_look_reads_next_to_nothing(conn):
    own = lanes("empty", "paused", "default")
    with conn.transaction(force_rollback=True):
        plan = explained(conn, "look", generic=True, run=True, size=4, **own)

        assert blocks(plan) < 150


def test_counting_the_backlog_costs_no_more_than_it_finds(conn):
    own = lanes("empty", "paused", "default", "elsewhere")
    with conn.transaction(force_rollback=True):
        plan = explained(conn, "look", generic=True, run=True, size=COUNTED, **own)

        assert not whole_reads(conn, plan["Plan"])
        assert blocks(plan) < 200 + COUNTED


# ── an old snapshot ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "count", [5000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_an_old_snapshot_does_not_make_claims_dearer(database, count):
    with connect(database) as conn, psycopg.connect(database) as old:
        conn.execute(
            "INSERT INTO queuety.jobs (handler) SELECT 'ok' FROM generate_series(1, %s)", [count + 100]
        )
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM queuety.jobs")
        own = Lanes(("default",))
        first = claim_blocks(conn, own)
        run_jobs(conn, own, count)
        last = claim_blocks(conn, own)
        old.rollback()
        conn.execute("VACUUM queuety.jobs")
        own.rewind()
        after = claim_blocks(conn, own)

    assert last < first + 100
    assert after < first + 100


def run_jobs(conn: Connection, own: Lanes, count: int) -> None:
    batch: Batch | None = None
    done = 0
    while done < count:
        jobs = claims.turn(conn, batch, Want(own, 50, "w#1", 60.0)).jobs
        batch = Batch(jobs[0].lease)
        for job in jobs:
            batch.add(job.id, Complete())
        done += len(jobs)
    claims.turn(conn, batch, None)


def claim_blocks(conn: Connection, own: Lanes) -> int:
    """Pages that a claim of ten from the cursor would touch."""
    with conn.transaction(force_rollback=True):
        conn.execute(statement("pin"))
        plan = explained(conn, "claim", generic=True, run=True, size=10, **own.values())
        assert plan["Plan"]["Actual Rows"] == 10
        return blocks(plan)
