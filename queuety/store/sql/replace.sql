-- Give pending jobs another content, under their old ids and with a fresh budget of attempts; note it in the journal;
-- wake the pools that sleep on their queues. For whoever has locked the unique keys that they hold.
-- jobs json: an array of objects as for insert_many.sql, each with the id of the job that it replaces, and with
-- unique_for (seconds of a window or null).
-- Returns the ids of those replaced: one that was not pending any more is not among them.
-- Locks: the rows.  Index: jobs_pkey, unique_keys_pkey, sleepers_pkey.
WITH content AS MATERIALIZED (
    SELECT
        c.id, c.handler, c.payload, c.queue, c.priority, c.max_attempts, c.delay, c.due, c.tags, c.unique_until,
        c.unique_for, c.backoff, c.limits
    FROM json_to_recordset(%(jobs)s::json) AS c (
        id bigint, handler text, payload text, queue text, priority smallint, max_attempts int, delay float8,
        due timestamptz, tags text[], unique_until text, unique_for float8, backoff text,
        limits text
    )
),
job AS (
    UPDATE queuety.jobs AS j
    SET handler = content.handler,
        payload = content.payload::json,
        queue = content.queue,
        priority = content.priority,
        attempts = 0,
        max_attempts = content.max_attempts,
        available_at = coalesce(
            content.due, statement_timestamp() + make_interval(secs => coalesce(content.delay, 0))
        ),
        tags = content.tags,
        unique_until = content.unique_until,
        backoff = content.backoff::json,
        limits = content.limits::jsonb,
        error = NULL,
        parked_on = NULL,
        parked_at = NULL
    FROM content
    WHERE j.id = ANY (ARRAY(SELECT content.id FROM content))
        AND j.id = content.id
        AND j.state = 'pending'
    RETURNING j.id, j.queue, j.unique_key, content.unique_until, content.unique_for
),
kept AS (
    UPDATE queuety.unique_keys AS u
    SET until = job.unique_until,
        lapses_at = statement_timestamp() + make_interval(secs => job.unique_for)
    FROM job
    WHERE u.key = ANY (ARRAY(SELECT job.unique_key FROM job))
        AND u.key = job.unique_key
        AND u.job_id = job.id
),
noted AS (
    INSERT INTO queuety.job_events (job_id, type)
    SELECT job.id, 'replaced'
    FROM job
)
SELECT
    job.id,
    (
        SELECT count(pg_notify('queuety', 'q:' || woken.queue))
        FROM (
            SELECT DISTINCT s.queue
            FROM queuety.sleepers AS s
            WHERE s.queue = ANY (ARRAY(SELECT all_jobs.queue FROM job AS all_jobs))
        ) AS woken
    )
FROM job
