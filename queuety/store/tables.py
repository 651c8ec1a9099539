"""The schema as SQLAlchemy Core: for lists and filters, never for the hot path. The migrations define it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSON, JSONB

from queuety.model import State

metadata = MetaData(schema="queuety")

job_state = ENUM(
    *(state.value for state in State),
    name="job_state",
    schema="queuety",
    metadata=metadata,
    create_type=False,
)
leases = Sequence("leases", metadata=metadata, data_type=BigInteger)
event_ids = Sequence("event_ids", metadata=metadata, data_type=BigInteger)

Time = DateTime(timezone=True)


def _required(name: str, type_: Any, default: str | None = None) -> Column[Any]:
    return Column(name, type_, nullable=False, server_default=text(default) if default else None)


jobs = Table(
    "jobs",
    metadata,
    Column("id", BigInteger, Identity(always=False), nullable=False),
    _required("available_at", Time, "now()"),
    _required("created_at", Time, "now()"),
    Column("claimed_at", Time),
    Column("lease_until", Time),
    Column("parked_at", Time),
    _required("lease", BigInteger, "0"),
    _required("attempts", Integer, "0"),
    _required("max_attempts", Integer, "3"),
    _required("priority", SmallInteger, "2"),
    _required("state", job_state, "'pending'::queuety.job_state"),
    _required("cancel_requested", Boolean, "false"),
    _required("queue", Text, "'default'::text"),
    _required("handler", Text),
    _required("payload", JSON, "'{}'::json"),
    Column("tags", ARRAY(Text)),
    Column("worker", Text),
    Column("parked_on", Text),
    Column("unique_key", Text),
    Column("backoff", JSON),
    Column("error", JSON),
    Column("limits", JSONB),
    Column("metered", Boolean),
    Column("unique_until", Text),
    PrimaryKeyConstraint("id", name="jobs_pkey"),
    CheckConstraint("max_attempts BETWEEN 1 AND 1000", name="jobs_max_attempts_check"),
    CheckConstraint("priority BETWEEN 0 AND 3", name="jobs_priority_check"),
    CheckConstraint("state IN ('pending', 'processing')", name="jobs_state_check"),
    CheckConstraint("(state = 'processing') = (lease_until IS NOT NULL)", name="jobs_lease_check"),
)
Index(
    "jobs_claim",
    jobs.c.queue,
    jobs.c.priority,
    jobs.c.available_at,
    jobs.c.id,
    postgresql_where=text("state = 'pending' AND parked_on IS NULL"),
)
Index("jobs_leases", jobs.c.lease_until, postgresql_where=text("lease_until IS NOT NULL"))
Index(
    "jobs_parked",
    jobs.c.parked_on,
    jobs.c.queue,
    jobs.c.priority,
    jobs.c.available_at,
    jobs.c.id,
    postgresql_where=text("parked_on IS NOT NULL"),
    postgresql_ops={"parked_on": "text_pattern_ops"},
)
Index(
    "jobs_limited",
    jobs.c.lease,
    postgresql_where=text("lease_until IS NOT NULL AND (limits IS NOT NULL OR metered)"),
)
Index(
    "jobs_group",
    text("(limits ->> 'group')"),
    _table=jobs,
    postgresql_where=text("limits ->> 'group' IS NOT NULL AND parked_on IS NULL"),
)
Index(
    "jobs_rate",
    text("(limits ->> 'rate_key')"),
    _table=jobs,
    postgresql_where=text("limits ->> 'rate_key' IS NOT NULL AND state = 'pending' AND parked_on IS NULL"),
)
Index("jobs_metered", jobs.c.queue, postgresql_where=text("metered AND lease_until IS NOT NULL"))

finished_jobs = Table(
    "finished_jobs",
    metadata,
    _required("id", BigInteger),
    _required("finished_at", Time),
    _required("available_at", Time),
    _required("created_at", Time),
    Column("started_at", Time),
    _required("attempts", Integer),
    _required("max_attempts", Integer),
    _required("priority", SmallInteger),
    _required("state", job_state),
    _required("queue", Text),
    _required("handler", Text),
    _required("payload", JSON),
    Column("result", JSON),
    Column("error", JSON),
    Column("tags", ARRAY(Text)),
    Column("unique_key", Text),
    Column("worker", Text),
    Column("limits", JSONB),
    Column("unique_until", Text),
    PrimaryKeyConstraint("id", "finished_at", name="finished_jobs_pkey"),
    CheckConstraint("state IN ('completed', 'cancelled')", name="finished_jobs_state_check"),
    postgresql_partition_by="RANGE (finished_at)",
)
Index(
    "finished_jobs_finished_at",
    finished_jobs.c.finished_at,
    postgresql_using="brin",
    postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
)

buried_jobs = Table(
    "buried_jobs",
    metadata,
    _required("id", BigInteger),
    _required("finished_at", Time),
    _required("available_at", Time),
    _required("created_at", Time),
    Column("started_at", Time),
    _required("attempts", Integer),
    _required("max_attempts", Integer),
    _required("priority", SmallInteger),
    _required("queue", Text),
    _required("handler", Text),
    _required("payload", JSON),
    Column("error", JSON),
    Column("backoff", JSON),
    Column("tags", ARRAY(Text)),
    Column("unique_key", Text),
    Column("worker", Text),
    Column("limits", JSONB),
    Column("unique_until", Text),
    PrimaryKeyConstraint("id", name="buried_jobs_pkey"),
)
Index("buried_jobs_finished_at", buried_jobs.c.finished_at)

job_events = Table(
    "job_events",
    metadata,
    _required("id", BigInteger, "nextval('queuety.event_ids')"),
    _required("at", Time, "now()"),
    _required("job_id", BigInteger),
    Column("attempt", Integer),
    _required("type", Text),
    Column("data", JSON),
    PrimaryKeyConstraint("id", "at", name="job_events_pkey"),
    postgresql_partition_by="RANGE (at)",
)
Index("job_events_job", job_events.c.job_id, job_events.c.id)

workers = Table(
    "workers",
    metadata,
    Column("id", BigInteger, Identity(always=False), nullable=False),
    Column("pool", BigInteger),
    _required("started_at", Time, "now()"),
    _required("seen_at", Time, "now()"),
    _required("pid", Integer),
    _required("kind", Text),
    _required("name", Text),
    _required("host", Text),
    _required("version", Text),
    _required("queues", ARRAY(Text)),
    Column("handlers", ARRAY(Text)),
    Column("memory", JSONB),
    PrimaryKeyConstraint("id", name="workers_pkey"),
    CheckConstraint("kind IN ('keeper', 'worker', 'scheduler')", name="workers_kind_check"),
)
Index("workers_schedulers", workers.c.seen_at, postgresql_where=text("kind = 'scheduler'"))

queues = Table(
    "queues",
    metadata,
    _required("name", Text),
    Column("paused_at", Time),
    Column("paused_until", Time),
    Column("pause_reason", Text),
    PrimaryKeyConstraint("name", name="queues_pkey"),
)

profiles = Table(
    "profiles",
    metadata,
    _required("handler", Text),
    _required("minute", Time),
    _required("runs", BigInteger),
    _required("seconds", Double),
    _required("durations", ARRAY(BigInteger)),
    Column("peak", BigInteger),
    Column("passing", BigInteger),
    PrimaryKeyConstraint("handler", "minute", name="profiles_pkey"),
)

meters = Table(
    "meters",
    metadata,
    _required("kind", Text),
    _required("name", Text),
    Column("concurrency", Integer),
    Column("budget", Integer),
    Column("rate_count", Integer),
    Column("rate_s", Double),
    _required("set_at", Time, "now()"),
    PrimaryKeyConstraint("kind", "name", name="meters_pkey"),
)

starts = Table(
    "starts",
    metadata,
    _required("key", Text),
    _required("lease", BigInteger),
    _required("begun_by", Time),
    _required("starts", Integer),
    PrimaryKeyConstraint("key", "lease", name="starts_pkey"),
)
Index("starts_window", starts.c.key, starts.c.begun_by)

schedules = Table(
    "schedules",
    metadata,
    _required("key", Text),
    _required("handler", Text),
    _required("payload", JSON, "'{}'::json"),
    _required("job", JSONB, "'{}'::jsonb"),
    Column("cron", Text),
    Column("every_s", Double),
    _required("timezone", Text, "'UTC'::text"),
    Column("starts_at", Time),
    Column("ends_at", Time),
    _required("jitter_s", Double, "0"),
    _required("overlap", Text, "'allow'::text"),
    _required("missed", Text, "'once'::text"),
    _required("missed_limit", Integer, "100"),
    Column("declared_by", Text),
    _required("anchor", Time, "now()"),
    Column("next_at", Time),
    Column("buffered_at", Time),
    Column("last_at", Time),
    Column("last_job", BigInteger),
    Column("paused_at", Time),
    Column("pause_reason", Text),
    Column("retired_at", Time),
    Column("broken", Text),
    _required("created_at", Time, "now()"),
    _required("changed_at", Time, "now()"),
    PrimaryKeyConstraint("key", name="schedules_pkey"),
    CheckConstraint("(cron IS NULL) <> (every_s IS NULL)", name="schedules_cadence_check"),
    CheckConstraint("length(key) BETWEEN 1 AND 255", name="schedules_key_check"),
    CheckConstraint("json_typeof(payload) = 'object'", name="schedules_payload_check"),
    CheckConstraint("jsonb_typeof(job) = 'object'", name="schedules_job_check"),
    CheckConstraint("every_s BETWEEN 1 AND 315576000", name="schedules_every_check"),
    CheckConstraint("jitter_s BETWEEN 0 AND 86400", name="schedules_jitter_check"),
    CheckConstraint(
        "isfinite(anchor) AND isfinite(next_at) AND isfinite(buffered_at)"
        " AND isfinite(starts_at) AND isfinite(ends_at)",
        name="schedules_times_check",
    ),
    CheckConstraint("overlap IN ('allow', 'skip', 'buffer')", name="schedules_overlap_check"),
    CheckConstraint("missed IN ('once', 'skip', 'all')", name="schedules_missed_check"),
    CheckConstraint("missed_limit >= 1", name="schedules_missed_limit_check"),
)
_HOLDS = "paused_at IS NULL AND retired_at IS NULL AND broken IS NULL"
Index("schedules_due", schedules.c.next_at, postgresql_where=text(_HOLDS))
Index(
    "schedules_buffered",
    schedules.c.last_job,
    postgresql_where=text(f"buffered_at IS NOT NULL AND {_HOLDS}"),
)

schedule_ticks = Table(
    "schedule_ticks",
    metadata,
    _required("schedule", Text),
    _required("at", Time),
    Column("through", Time),
    _required("ticks", Integer, "1"),
    _required("kind", Text),
    Column("reason", Text),
    Column("job_id", BigInteger),
    Column("ended", Text),
    Column("error", JSON),
    _required("noted_at", Time, "statement_timestamp()"),
    Column("ended_at", Time),
    PrimaryKeyConstraint("schedule", "at", name="schedule_ticks_pkey"),
    CheckConstraint("kind IN ('run', 'skip', 'fail')", name="schedule_ticks_kind_check"),
    CheckConstraint("ended IN ('done', 'fail', 'gone')", name="schedule_ticks_ended_check"),
)
Index(
    "schedule_ticks_open",
    schedule_ticks.c.job_id,
    postgresql_where=text("job_id IS NOT NULL AND ended IS NULL"),
)
Index("schedule_ticks_noted", schedule_ticks.c.noted_at)

http_tokens = Table(
    "http_tokens",
    metadata,
    _required("name", Text),
    _required("role", Text),
    _required("digest", LargeBinary),
    _required("created_at", Time, "now()"),
    PrimaryKeyConstraint("name", name="http_tokens_pkey"),
    CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="http_tokens_role_check"),
    CheckConstraint("length(digest) = 32", name="http_tokens_digest_check"),
)

http_requests = Table(
    "http_requests",
    metadata,
    _required("owner", Text),
    _required("key", Text),
    _required("digest", LargeBinary),
    Column("job_id", BigInteger),
    _required("created_at", Time, "statement_timestamp()"),
    PrimaryKeyConstraint("owner", "key", name="http_requests_pkey"),
)
Index("http_requests_created", http_requests.c.created_at)

webhooks = Table(
    "webhooks",
    metadata,
    _required("name", Text),
    _required("url", Text),
    _required("events", ARRAY(Text)),
    _required("handlers", ARRAY(Text), "'{}'"),
    _required("queues", ARRAY(Text), "'{}'"),
    _required("tags", ARRAY(Text), "'{}'"),
    _required("deliver_on", Text, "'default'"),
    _required("concurrency", Integer, "2"),
    _required("max_attempts", Integer),
    _required("backoff", JSON),
    _required("headers", JSON),
    _required("allow_private", Boolean, "false"),
    _required("secret", Text),
    Column("old_secret", Text),
    Column("old_secret_until", Time),
    Column("paused_at", Time),
    Column("pause_reason", Text),
    _required("created_at", Time, "now()"),
    PrimaryKeyConstraint("name", name="webhooks_pkey"),
    CheckConstraint(
        "cardinality(events) > 0 AND events <@ ARRAY['job.completed', 'job.failed', 'job.canceled']",
        name="webhooks_events_check",
    ),
    CheckConstraint("concurrency BETWEEN 1 AND 1000000", name="webhooks_concurrency_check"),
    CheckConstraint("max_attempts BETWEEN 1 AND 1000", name="webhooks_max_attempts_check"),
    CheckConstraint("(old_secret IS NULL) = (old_secret_until IS NULL)", name="webhooks_old_secret_check"),
)

sleepers = Table(
    "sleepers",
    metadata,
    _required("pool", BigInteger),
    _required("queue", Text),
    PrimaryKeyConstraint("queue", "pool", name="sleepers_pkey"),
    prefixes=["UNLOGGED"],
)

watched = Table(
    "watched",
    metadata,
    _required("job_id", BigInteger),
    _required("until", Time),
    _required("listener", Text),
    PrimaryKeyConstraint("job_id", "listener", name="watched_pkey"),
    prefixes=["UNLOGGED"],
)

# A view: a row for each reason to tell somebody what happens to jobs.
audience = Table("audience", metadata, Column("kind", Text), info={"view": True})

unique_keys = Table(
    "unique_keys",
    metadata,
    _required("job_id", BigInteger),
    Column("lapses_at", Time),
    _required("key", Text),
    _required("until", Text),
    PrimaryKeyConstraint("key", name="unique_keys_pkey"),
    CheckConstraint("until IN ('start', 'end', 'window')", name="unique_keys_until_check"),
    CheckConstraint("(until = 'window') = (lapses_at IS NOT NULL)", name="unique_keys_lapses_at_check"),
)

# A view: the last job that took each unique key, and whether it still holds it.
key_holders = Table(
    "key_holders",
    metadata,
    Column("key", Text),
    Column("job_id", BigInteger),
    Column("until", Text),
    Column("lapses_at", Time),
    Column("held", Boolean),
    info={"view": True},
)

# A view: every job in every state.
all_jobs = Table(
    "all_jobs",
    metadata,
    Column("id", BigInteger),
    Column("queue", Text),
    Column("handler", Text),
    Column("state", job_state),
    Column("priority", SmallInteger),
    Column("attempts", Integer),
    Column("max_attempts", Integer),
    Column("payload", JSON),
    Column("result", JSON),
    Column("error", JSON),
    Column("tags", ARRAY(Text)),
    Column("parked_on", Text),
    Column("unique_key", Text),
    Column("worker", Text),
    Column("available_at", Time),
    Column("created_at", Time),
    Column("started_at", Time),
    Column("finished_at", Time),
    info={"view": True},
)
