-- Write one job, and wake a pool only if one has registered that it sleeps on this queue.
-- NOTIFY serialises the commits of all who send it, so it is sent to sleepers only.
-- handler, payload, queue text.  priority, max_attempts int.  delay float8 (seconds, NULL: none).
-- due timestamptz (NULL: now).  tags text[].  backoff, limits text (JSON or NULL).
-- One that has no room anyway is parked at once: it never stands in a claim's way.
-- Returns id.  Index: sleepers_pkey.
WITH job AS (
    INSERT INTO queuety.jobs (
        handler, payload, queue, priority, max_attempts, available_at, tags, backoff, limits, parked_on, parked_at
    )
    SELECT
        %(handler)s, %(payload)s::json, %(queue)s, %(priority)s::smallint, %(max_attempts)s::int, due.at,
        %(tags)s::text[], %(backoff)s::json, due.limits, waits.key,
        CASE WHEN waits.key IS NOT NULL THEN statement_timestamp() END
    FROM (
        SELECT
            coalesce(
                %(due)s::timestamptz,
                statement_timestamp() + make_interval(secs => coalesce(%(delay)s::float8, 0))
            ) AS at,
            %(limits)s::jsonb AS limits
    ) AS due
    CROSS JOIN LATERAL (
        SELECT CASE WHEN due.at <= statement_timestamp() THEN queuety.waits_for(due.limits) END AS key
    ) AS waits
    RETURNING id, queue, available_at, parked_on
)
SELECT
    job.id,
    (
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM queuety.sleepers AS s
        WHERE s.queue = job.queue AND job.available_at <= statement_timestamp() AND job.parked_on IS NULL
        LIMIT 1
    )
FROM job
