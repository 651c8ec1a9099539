-- Send up to `size` buried jobs back to pending, in the order of their ids, each with a fresh budget of attempts
-- and no lease; note the past in the journal; wake the pools that sleep on their queues.
-- Each takes its unique key again, unless that is held for a window; one whose key another job holds stays buried.
-- first, last bigint: ids looked at.  handler, queue text (NULL: any).  size int.
-- Returns the jobs looked at, the jobs sent back, the last id looked at, and (unused) the queues woken.
-- Locks: the rows; locked rows are skipped.  Index: buried_jobs_pkey, sleepers_pkey.
WITH picked AS MATERIALIZED (
    SELECT
        b.id, b.started_at, b.finished_at, b.created_at, b.attempts, b.max_attempts, b.priority, b.queue, b.handler, b.payload,
        b.error, b.tags, b.unique_key, b.unique_until, b.backoff, b.limits
    FROM queuety.buried_jobs AS b
    WHERE b.id BETWEEN %(first)s::bigint AND %(last)s::bigint
        AND (%(handler)s::text IS NULL OR b.handler = %(handler)s::text)
        AND (%(queue)s::text IS NULL OR b.queue = %(queue)s::text)
    ORDER BY b.id
    LIMIT %(size)s::int
    FOR UPDATE SKIP LOCKED
),
wanted AS (
    SELECT
        array_agg(picked.unique_key) AS keys,
        array_agg(picked.id) AS jobs,
        array_agg(coalesce(picked.unique_until, 'end')) AS untils
    FROM picked
    WHERE picked.unique_key IS NOT NULL
        AND picked.unique_until IS DISTINCT FROM 'window'
),
taken AS MATERIALIZED (
    SELECT t.key, t.holder
    FROM wanted
    CROSS JOIN LATERAL queuety.take_keys(wanted.keys, wanted.jobs, wanted.untils, NULL, false) AS t
    WHERE wanted.keys IS NOT NULL
),
job AS (
    INSERT INTO queuety.jobs (
        id, available_at, created_at, max_attempts, priority, queue, handler, payload, tags, unique_key,
        unique_until, backoff, error, limits
    )
    SELECT
        picked.id, statement_timestamp(), picked.created_at, picked.max_attempts, picked.priority, picked.queue,
        picked.handler, picked.payload, picked.tags, picked.unique_key, picked.unique_until,
        picked.backoff, picked.error, picked.limits
    FROM picked
    WHERE picked.unique_key IS NULL
        OR picked.unique_until = 'window'
        OR picked.id = ANY (ARRAY(SELECT taken.holder FROM taken))
    ORDER BY picked.id
    RETURNING id, queue
),
gone AS (
    DELETE FROM queuety.buried_jobs AS b
    WHERE b.id = ANY (ARRAY(SELECT job.id FROM job))
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT
        picked.id, picked.attempts, 'requeued',
        json_build_object(
            'from', 'buried', 'started_at', picked.started_at, 'finished_at', picked.finished_at,
            'error', picked.error
        )
    FROM job
    INNER JOIN picked ON picked.id = job.id
    ORDER BY picked.id
)
SELECT
    (SELECT count(*) FROM picked),
    (SELECT count(*) FROM job),
    (SELECT max(picked.id) FROM picked),
    (
        SELECT count(pg_notify('queuety', 'q:' || woken.queue))
        FROM (
            SELECT DISTINCT s.queue
            FROM queuety.sleepers AS s
            WHERE s.queue = ANY (ARRAY(SELECT job.queue FROM job))
        ) AS woken
    )
