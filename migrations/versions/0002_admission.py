"""Admission: what limits a job, and the meters that it is admitted by"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# All nullable and without a default: adding them rewrites nothing, and a plain job pays nothing for them.
LIMITS = """
ALTER TABLE queuety.jobs ADD COLUMN limits jsonb, ADD COLUMN metered boolean;
ALTER TABLE queuety.finished_jobs ADD COLUMN limits jsonb;
ALTER TABLE queuety.buried_jobs ADD COLUMN limits jsonb;
COMMENT ON COLUMN queuety.jobs.limits IS
    'What the job must have room for: {"group", "concurrency", "cost", "rate_key", "rate_count", "rate_s"}';
COMMENT ON COLUMN queuety.jobs.metered IS 'Claimed from a queue with a cost budget, which the run counts against';
"""

PROFILES = """
CREATE TABLE queuety.profiles (
    handler text NOT NULL,
    minute timestamptz NOT NULL,
    runs bigint NOT NULL,
    seconds double precision NOT NULL,
    durations bigint[] NOT NULL,
    peak bigint,
    passing bigint,
    CONSTRAINT profiles_pkey PRIMARY KEY (handler, minute)
) WITH (fillfactor = 50);
COMMENT ON TABLE queuety.profiles IS 'What the runs of a handler have taken, by minute';
COMMENT ON COLUMN queuety.profiles.durations IS
    'Numbers of runs by duration: 64 classes, each longer by the square root of 2 than the one before';
COMMENT ON COLUMN queuety.profiles.peak IS 'The most memory that one run has taken, in bytes; null: not measured';
COMMENT ON COLUMN queuety.profiles.passing IS 'The most that one run has taken and given back at its end, in bytes';
ALTER TABLE queuety.workers ADD COLUMN memory jsonb;
COMMENT ON COLUMN queuety.workers.memory IS 'A keeper only: what its pool has, and what a worker of it may take';
"""

ENQUEUE = r"""
CREATE OR REPLACE FUNCTION queuety.enqueue(job jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _job jsonb;
    _unknown text;
    _handler text;
    _queue text := 'default';
    _payload jsonb := '{}';
    _priority integer := 2;
    _max_attempts integer := 3;
    _due timestamptz;
    _tags text[];
    _unique_key text;
    _id bigint;
BEGIN
    IF jsonb_typeof(job) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'queuety.enqueue: the job must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'For example {"handler": "add", "payload": {"a": 1}}.';
    END IF;
    SELECT min(key) INTO _unknown FROM jsonb_object_keys(job) AS key
    WHERE key <> ALL (ARRAY['handler', 'payload', 'queue', 'priority', 'delay', 'at', 'max_attempts', 'tags',
                            'unique_key']);
    IF _unknown IS NOT NULL THEN
        RAISE EXCEPTION 'queuety.enqueue: unknown key "%"', _unknown
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Known: handler, payload, queue, priority, delay, at, max_attempts, tags,'
                         ' unique_key.';
    END IF;
    IF job ? 'payload' THEN
        _payload := job -> 'payload';
        IF jsonb_typeof(_payload) <> 'object' THEN
            RAISE EXCEPTION 'queuety.enqueue: payload must be a JSON object, not %', jsonb_typeof(_payload)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    -- From here on a null means: not given.
    SELECT coalesce(jsonb_object_agg(key, value), '{}') INTO _job FROM jsonb_each(job)
    WHERE jsonb_typeof(value) <> 'null' AND key <> 'payload';
    _handler := queuety.enqueue_name('handler', _job -> 'handler');
    IF _job ? 'queue' THEN
        _queue := queuety.enqueue_name('queue', _job -> 'queue');
    END IF;
    IF jsonb_typeof(_job -> 'priority') = 'string' THEN
        _priority := array_position(ARRAY['urgent', 'high', 'normal', 'low'], _job ->> 'priority') - 1;
        IF _priority IS NULL THEN
            RAISE EXCEPTION 'queuety.enqueue: priority must be urgent, high, normal, low or 0 to 3, not %',
                _job -> 'priority' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    ELSIF _job ? 'priority' THEN
        _priority := queuety.enqueue_whole('priority', _job -> 'priority', 0, 3);
    END IF;
    IF _job ? 'max_attempts' THEN
        _max_attempts := queuety.enqueue_whole('max_attempts', _job -> 'max_attempts', 1, 1000);
    END IF;
    _due := queuety.enqueue_due(_job -> 'delay', _job -> 'at');
    IF _job ? 'tags' THEN
        IF jsonb_typeof(_job -> 'tags') <> 'array' THEN
            RAISE EXCEPTION 'queuety.enqueue: tags must be an array of text, not %',
                jsonb_typeof(_job -> 'tags') USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT array_agg(queuety.enqueue_name('tag', tag)) INTO _tags
        FROM jsonb_array_elements(_job -> 'tags') AS tag;
    END IF;
    IF _job ? 'unique_key' THEN
        _unique_key := queuety.enqueue_name('unique_key', _job -> 'unique_key');
    END IF;

    -- Again, because the job that held the key may be settled between the two statements.
    LOOP
        INSERT INTO queuety.jobs
            (handler, queue, payload, priority, max_attempts, available_at, tags, unique_key)
        VALUES (_handler, _queue, _payload::text::json, _priority, _max_attempts, _due, _tags, _unique_key)
        ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING id INTO _id;
        EXIT WHEN _id IS NOT NULL;
        SELECT id INTO _id FROM queuety.jobs WHERE unique_key = _unique_key;
        IF _id IS NOT NULL THEN
            RETURN _id;
        END IF;
    END LOOP;

    -- Only for sleepers: NOTIFY serialises the commits of all who send it.
    IF _due <= statement_timestamp() AND EXISTS (SELECT FROM queuety.sleepers WHERE queue = _queue) THEN
        PERFORM pg_notify('queuety', 'q:' || _queue);
    END IF;
    RETURN _id;
END
$body$;
"""


def upgrade() -> None:
    for part in (LIMITS, PROFILES, ENQUEUE):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
