"""Schedules: what is to be enqueued when, and the journal of their ticks"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# A tick and its job are one transaction under the lock of the schedule's row, and the primary key of schedule_ticks
# is (schedule, instant): whatever moves next_at back, a tick that has run does not run again.
SCHEDULES = """
CREATE TABLE queuety.schedules (
    key text NOT NULL,
    handler text NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    job jsonb NOT NULL DEFAULT '{}',
    cron text,
    every_s double precision,
    timezone text NOT NULL DEFAULT 'UTC',
    starts_at timestamptz,
    ends_at timestamptz,
    jitter_s double precision NOT NULL DEFAULT 0,
    overlap text NOT NULL DEFAULT 'allow',
    missed text NOT NULL DEFAULT 'once',
    missed_limit integer NOT NULL DEFAULT 100,
    declared_by text,
    anchor timestamptz NOT NULL DEFAULT now(),
    next_at timestamptz,
    buffered_at timestamptz,
    last_at timestamptz,
    last_job bigint,
    paused_at timestamptz,
    pause_reason text,
    retired_at timestamptz,
    broken text,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT schedules_pkey PRIMARY KEY (key),
    CONSTRAINT schedules_cadence_check CHECK ((cron IS NULL) <> (every_s IS NULL)),
    CONSTRAINT schedules_key_check CHECK (length(key) BETWEEN 1 AND 255),
    CONSTRAINT schedules_payload_check CHECK (json_typeof(payload) = 'object'),
    CONSTRAINT schedules_job_check CHECK (jsonb_typeof(job) = 'object'),
    CONSTRAINT schedules_every_check CHECK (every_s BETWEEN 1 AND 315576000),
    CONSTRAINT schedules_jitter_check CHECK (jitter_s BETWEEN 0 AND 86400),
    CONSTRAINT schedules_times_check CHECK (
        isfinite(anchor) AND isfinite(next_at) AND isfinite(buffered_at) AND isfinite(starts_at) AND isfinite(ends_at)
    ),
    CONSTRAINT schedules_overlap_check CHECK (overlap IN ('allow', 'skip', 'buffer')),
    CONSTRAINT schedules_missed_check CHECK (missed IN ('once', 'skip', 'all')),
    CONSTRAINT schedules_missed_limit_check CHECK (missed_limit >= 1)
);
CREATE INDEX schedules_due ON queuety.schedules (next_at)
    WHERE paused_at IS NULL AND retired_at IS NULL AND broken IS NULL;
CREATE INDEX schedules_buffered ON queuety.schedules (last_job)
    WHERE buffered_at IS NOT NULL AND paused_at IS NULL AND retired_at IS NULL AND broken IS NULL;
COMMENT ON TABLE queuety.schedules IS 'What is to be enqueued when';
COMMENT ON COLUMN queuety.schedules.job IS
    'Settings of its jobs: {"queue", "priority", "max_attempts", "tags", "backoff", "limits", "unique" …}';
COMMENT ON COLUMN queuety.schedules.declared_by IS
    'The application whose code declares it; null: it was made by command or call';
COMMENT ON COLUMN queuety.schedules.anchor IS 'What an interval counts from';
COMMENT ON COLUMN queuety.schedules.next_at IS 'The next tick; null: there is none';
COMMENT ON COLUMN queuety.schedules.buffered_at IS 'The tick that runs when the job before has ended';
COMMENT ON COLUMN queuety.schedules.last_at IS 'The last tick that ran, and last_job: its job';
COMMENT ON COLUMN queuety.schedules.retired_at IS 'Since when its application declares it no more';
COMMENT ON COLUMN queuety.schedules.broken IS 'Why its next tick cannot be computed';

CREATE TABLE queuety.schedule_ticks (
    schedule text NOT NULL,
    at timestamptz NOT NULL,
    through timestamptz,
    ticks integer NOT NULL DEFAULT 1,
    kind text NOT NULL,
    reason text,
    job_id bigint,
    ended text,
    error json,
    noted_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    ended_at timestamptz,
    CONSTRAINT schedule_ticks_pkey PRIMARY KEY (schedule, at),
    CONSTRAINT schedule_ticks_kind_check CHECK (kind IN ('run', 'skip', 'fail')),
    CONSTRAINT schedule_ticks_ended_check CHECK (ended IN ('done', 'fail', 'gone'))
);
CREATE INDEX schedule_ticks_open ON queuety.schedule_ticks (job_id) WHERE job_id IS NOT NULL AND ended IS NULL;
CREATE INDEX schedule_ticks_noted ON queuety.schedule_ticks (noted_at);
COMMENT ON TABLE queuety.schedule_ticks IS 'The journal of the schedules: each tick that ran, was skipped or failed';
COMMENT ON COLUMN queuety.schedule_ticks.through IS
    'The last of several ticks in a row that were skipped for one reason; ticks: how many, 1000: or more';
COMMENT ON COLUMN queuety.schedule_ticks.ended IS 'How the job ended: done, fail; gone: it was deleted before';
"""

SCHEDULERS = """
ALTER TABLE queuety.workers DROP CONSTRAINT workers_kind_check;
ALTER TABLE queuety.workers ADD CONSTRAINT workers_kind_check CHECK (kind IN ('keeper', 'worker', 'scheduler'));
CREATE INDEX workers_schedulers ON queuety.workers (seen_at) WHERE kind = 'scheduler';
"""


def upgrade() -> None:
    for part in (SCHEDULES, SCHEDULERS):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
