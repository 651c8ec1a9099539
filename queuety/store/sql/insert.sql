-- Write one job, and wake a pool only if one has registered that it sleeps on this queue.
-- NOTIFY serialises the commits of all who send it, so it is sent to sleepers only.
-- handler, payload, queue text.  priority, max_attempts int.  delay float8 (seconds, NULL: none).
-- due timestamptz (NULL: now).  tags text[].  backoff text (JSON or NULL).
-- Returns id.  Index: sleepers_pkey.
WITH job AS (
    INSERT INTO queuety.jobs (handler, payload, queue, priority, max_attempts, available_at, tags, backoff)
    VALUES (
        %(handler)s, %(payload)s::json, %(queue)s, %(priority)s::smallint, %(max_attempts)s::int,
        coalesce(
            %(due)s::timestamptz,
            statement_timestamp() + make_interval(secs => coalesce(%(delay)s::float8, 0))
        ),
        %(tags)s::text[], %(backoff)s::json
    )
    RETURNING id, queue, available_at
)
SELECT
    job.id,
    (
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM queuety.sleepers AS s
        WHERE s.queue = job.queue AND job.available_at <= statement_timestamp()
        LIMIT 1
    )
FROM job
