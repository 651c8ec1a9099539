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

# A key is held by one row of unique_keys; whether its job still counts is looked up and never written down, so
# that no end of a job, by whatever road, can leave a key taken, and the claim and the settlements do nothing for it.
UNIQUE = r"""
CREATE TABLE queuety.unique_keys (
    job_id bigint NOT NULL,
    lapses_at timestamptz,
    key text NOT NULL,
    until text NOT NULL,
    CONSTRAINT unique_keys_pkey PRIMARY KEY (key),
    CONSTRAINT unique_keys_until_check CHECK (until IN ('start', 'end', 'window')),
    CONSTRAINT unique_keys_lapses_at_check CHECK ((until = 'window') = (lapses_at IS NOT NULL))
);
COMMENT ON TABLE queuety.unique_keys IS
    'The last job that took each unique key; the view held_keys says which of them still hold theirs';
COMMENT ON COLUMN queuety.unique_keys.until IS
    'start: held while the job is pending; end: while it is pending or processing; window: until lapses_at';

ALTER TABLE queuety.jobs ADD COLUMN unique_until text;
ALTER TABLE queuety.finished_jobs ADD COLUMN unique_until text;
ALTER TABLE queuety.buried_jobs ADD COLUMN unique_until text;
COMMENT ON COLUMN queuety.jobs.unique_key IS 'The key that the job was written under; held_keys says who holds it';
COMMENT ON COLUMN queuety.jobs.unique_until IS 'What frees the key: start, end or window';

CREATE VIEW queuety.held_keys AS
SELECT u.key, u.job_id, u.until, u.lapses_at
FROM queuety.unique_keys AS u
LEFT JOIN queuety.jobs AS j ON j.id = u.job_id
WHERE CASE u.until
    WHEN 'window' THEN u.lapses_at > clock_timestamp()
    WHEN 'start' THEN j.state = 'pending'
    ELSE j.id IS NOT NULL
END;
COMMENT ON VIEW queuety.held_keys IS 'The unique keys that are taken, and by which job';

UPDATE queuety.jobs SET unique_until = 'end' WHERE unique_key IS NOT NULL;
INSERT INTO queuety.unique_keys (key, job_id, until)
SELECT unique_key, id, unique_until FROM queuety.jobs WHERE unique_key IS NOT NULL;
DROP INDEX queuety.jobs_unique;

-- With the owner's rights, after a look at the caller's: whoever may write a job may take a key for it.
CREATE FUNCTION queuety.take_keys(
    keys text[], jobs bigint[], untils text[], seconds double precision[], locking boolean
) RETURNS TABLE (key text, holder bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, queuety, pg_temp
-- Only by the indexes, whatever the statistics say.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $body$
#variable_conflict use_column
DECLARE
    _keys text[] := keys;
    _found text[];
    _holders bigint[];
    _waiting bigint[];
BEGIN
    IF NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none')::name, session_user),
                               'queuety.jobs', 'INSERT') THEN
        RAISE EXCEPTION 'permission denied: a unique key needs INSERT on jobs'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT locking THEN
        -- What is plainly held is not locked: nobody else has to wait for the end of this transaction. But a job
        -- that is held until it starts is kept from starting before, so that its run sees what is written here.
        _waiting := queuety.keep_waiting(_keys);
        SELECT array_agg(h.key), array_agg(h.job_id) INTO _found, _holders FROM queuety.held_keys AS h
        WHERE h.key = ANY (_keys) AND (h.until <> 'start' OR h.job_id = ANY (_waiting));
        IF _found IS NOT NULL THEN
            RETURN QUERY SELECT k, j FROM unnest(_found, _holders) AS held (k, j);
            _keys := ARRAY(SELECT k FROM unnest(_keys) AS k EXCEPT SELECT k FROM unnest(_found) AS k);
        END IF;
    END IF;
    -- In one order, so that two who take several never wait for each other. Whoever has one of them and has not
    -- committed is waited for; a row that is there is locked, and left as it is.
    WITH fresh AS (
        INSERT INTO queuety.unique_keys AS u (key, job_id, until, lapses_at)
        SELECT DISTINCT ON (w.key COLLATE "C")
            w.key, w.job, w.until, statement_timestamp() + make_interval(secs => w.seconds)
        FROM unnest(keys, jobs, untils, seconds) AS w (key, job, until, seconds)
        WHERE w.key = ANY (_keys)
        ORDER BY w.key COLLATE "C", w.job
        ON CONFLICT (key) DO UPDATE SET job_id = u.job_id WHERE false
        RETURNING u.key
    )
    SELECT array_agg(fresh.key) INTO _found FROM fresh;
    IF _found IS NOT NULL THEN
        RETURN QUERY SELECT u.key, u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (_found);
        _keys := ARRAY(SELECT k FROM unnest(_keys) AS k EXCEPT SELECT k FROM unnest(_found) AS k);
    END IF;
    IF _keys = '{}' THEN
        RETURN;
    END IF;
    -- Look after locking: one statement sees one snapshot. Also what is the job's own already is written anew, or
    -- another transaction's older snapshot would still take it for free.
    _waiting := queuety.keep_waiting(_keys);
    UPDATE queuety.unique_keys AS u
    SET job_id = w.job, until = w.until,
        lapses_at = statement_timestamp() + make_interval(secs => w.seconds)
    FROM (
        SELECT DISTINCT ON (w.key COLLATE "C") w.key, w.job, w.until, w.seconds
        FROM unnest(keys, jobs, untils, seconds) AS w (key, job, until, seconds)
        WHERE w.key = ANY (_keys)
        ORDER BY w.key COLLATE "C", w.job
    ) AS w
    WHERE u.key = w.key
        AND NOT EXISTS (
            SELECT FROM queuety.held_keys AS h
            WHERE h.key = u.key AND (h.until <> 'start' OR h.job_id = ANY (_waiting))
        );
    RETURN QUERY SELECT u.key, u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (_keys);
END
$body$;
COMMENT ON FUNCTION queuety.take_keys(text[], bigint[], text[], double precision[], boolean) IS
    'Take unique keys for jobs about to be written in this transaction; returns who holds each, old or new';

CREATE FUNCTION queuety.keep_waiting(keys text[]) RETURNS bigint[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
    -- A claim skips what is locked.
    WITH waiting AS (
        SELECT j.id
        FROM queuety.jobs AS j
        WHERE j.id = ANY (ARRAY(
                SELECT u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (keys) AND u.until = 'start'
            ))
            AND j.state = 'pending'
        ORDER BY j.id
        FOR KEY SHARE
    )
    SELECT coalesce(array_agg(waiting.id), '{}') FROM waiting
$body$;
COMMENT ON FUNCTION queuety.keep_waiting(text[]) IS
    'Keep pending the jobs that hold these keys until they start, while this transaction lasts; returns them';
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
    _until text := 'end';
    _window double precision;
    _id bigint;
    _holder bigint;
BEGIN
    IF jsonb_typeof(job) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'queuety.enqueue: the job must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'For example {"handler": "add", "payload": {"a": 1}}.';
    END IF;
    SELECT min(key) INTO _unknown FROM jsonb_object_keys(job) AS key
    WHERE key <> ALL (ARRAY['handler', 'payload', 'queue', 'priority', 'delay', 'at', 'max_attempts', 'tags',
                            'unique_key', 'unique_for', 'unique_until', 'on_duplicate']);
    IF _unknown IS NOT NULL THEN
        RAISE EXCEPTION 'queuety.enqueue: unknown key "%"', _unknown
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Known: handler, payload, queue, priority, delay, at, max_attempts, tags,'
                         ' unique_key, unique_for, unique_until, on_duplicate.';
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
    ELSIF _job ?| ARRAY['unique_for', 'unique_until', 'on_duplicate'] THEN
        RAISE EXCEPTION 'queuety.enqueue: unique_for, unique_until and on_duplicate need a unique_key'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF _job ? 'unique_for' THEN
        IF _job ? 'unique_until' THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_for and unique_until exclude each other'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF jsonb_typeof(_job -> 'unique_for') <> 'number'
           OR (_job ->> 'unique_for')::numeric NOT BETWEEN 0.001 AND 3155760000 THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_for must be seconds from 0.001 to 3155760000, not %',
                _job -> 'unique_for' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        _until := 'window';
        _window := (_job ->> 'unique_for')::double precision;
    ELSIF _job ? 'unique_until' THEN
        _until := _job ->> 'unique_until';
        IF _until NOT IN ('start', 'end') THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_until must be "start" or "end", not %',
                _job -> 'unique_until' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF _job ->> 'on_duplicate' NOT IN ('return', 'error', 'skip') THEN
        RAISE EXCEPTION 'queuety.enqueue: on_duplicate must be "return", "error" or "skip", not %',
            _job -> 'on_duplicate' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    _id := nextval(pg_get_serial_sequence('queuety.jobs', 'id'));
    IF _unique_key IS NOT NULL THEN
        SELECT t.holder INTO _holder
        FROM queuety.take_keys(ARRAY[_unique_key], ARRAY[_id], ARRAY[_until], ARRAY[_window], false) AS t;
        IF _holder <> _id THEN
            IF _job ->> 'on_duplicate' = 'error' THEN
                RAISE EXCEPTION 'queuety.enqueue: job % has the unique key %', _holder, _job -> 'unique_key'
                    USING ERRCODE = 'unique_violation', HINT = 'Wait for it, or use "on_duplicate": "return".';
            END IF;
            RETURN CASE WHEN _job ->> 'on_duplicate' = 'skip' THEN NULL ELSE _holder END;
        END IF;
    END IF;
    INSERT INTO queuety.jobs
        (id, handler, queue, payload, priority, max_attempts, available_at, tags, unique_key, unique_until)
    VALUES (_id, _handler, _queue, _payload::text::json, _priority, _max_attempts, _due, _tags, _unique_key,
            CASE WHEN _unique_key IS NOT NULL THEN _until END);

    -- Only for sleepers: NOTIFY serialises the commits of all who send it.
    IF _due <= statement_timestamp() AND EXISTS (SELECT FROM queuety.sleepers WHERE queue = _queue) THEN
        PERFORM pg_notify('queuety', 'q:' || _queue);
    END IF;
    RETURN _id;
END
$body$;
"""


def upgrade() -> None:
    for part in (LIMITS, PROFILES, UNIQUE, ENQUEUE):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
