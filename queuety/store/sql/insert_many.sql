-- Write jobs from JSON, for a caller whose driver has no COPY, and wake the pools that sleep on their queues.
-- jobs json: an array of objects with an id each.  Returns the ids.
-- Index: sleepers_pkey.
WITH job AS (
    INSERT INTO queuety.jobs (
        id, handler, payload, queue, priority, max_attempts, available_at, tags, unique_key, unique_until, backoff,
        limits, parked_on, parked_at
    )
    SELECT
        j.id, j.handler, j.payload::json, j.queue, j.priority, j.max_attempts,
        coalesce(j.due, statement_timestamp() + make_interval(secs => coalesce(j.delay, 0))),
        j.tags, j.unique_key, j.unique_until, j.backoff::json, j.limits::jsonb, j.parked_on,
        CASE WHEN j.parked_on IS NOT NULL THEN statement_timestamp() END
    FROM json_to_recordset(%(jobs)s::json) AS j (
        id bigint, handler text, payload text, queue text, priority smallint, max_attempts int, delay float8,
        due timestamptz, tags text[], unique_key text, unique_until text, backoff text, limits text,
        parked_on text
    )
    ORDER BY j.id
    RETURNING id, queue
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
