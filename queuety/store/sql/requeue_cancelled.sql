-- Send a cancelled job back to pending with a fresh budget of attempts and no lease; note the past in the journal;
-- wake the pools that sleep on its queue. It takes its unique key as requeue_buried does; if another job holds that, it
-- stays as it is.
-- id bigint.
-- Returns the jobs found cancelled, the jobs sent back, the id, and (unused) the queues woken: as requeue_buried.
-- Locks: the row; a locked row is skipped.  Index: finished_jobs_pkey, sleepers_pkey.
WITH picked AS MATERIALIZED (
    SELECT
        f.id, f.started_at, f.finished_at, f.created_at, f.attempts, f.max_attempts, f.priority, f.queue, f.handler, f.payload,
        f.error, f.tags, f.unique_key, f.unique_until, f.limits
    FROM queuety.finished_jobs AS f
    WHERE f.id = %(id)s::bigint
        AND f.state = 'cancelled'
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
        unique_until, error, limits
    )
    SELECT
        picked.id, statement_timestamp(), picked.created_at, picked.max_attempts, picked.priority, picked.queue,
        picked.handler, picked.payload, picked.tags, picked.unique_key, picked.unique_until, picked.error,
        picked.limits
    FROM picked
    WHERE picked.unique_key IS NULL
        OR picked.unique_until = 'window'
        OR picked.id = ANY (ARRAY(SELECT taken.holder FROM taken))
    RETURNING id, queue
),
gone AS (
    DELETE FROM queuety.finished_jobs AS f
    WHERE f.id = ANY (ARRAY(SELECT job.id FROM job))
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT
        picked.id, picked.attempts, 'requeued',
        json_build_object(
            'from', 'cancelled', 'started_at', picked.started_at, 'finished_at', picked.finished_at,
            'error', picked.error
        )
    FROM job
    INNER JOIN picked ON picked.id = job.id
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
