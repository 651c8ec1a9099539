-- What the jobs that ended lately came to, by handler, without locking.
-- window float8 (seconds).  size int: read no more jobs that ended well, and no more buried ones; the newest days first.
-- Returns a row for each handler: handler, completed, cancelled, buried, failed (attempts of these jobs that failed),
-- mean and p95 (seconds that the last runs of completed jobs took), read (jobs, those of all handlers).
-- Indexes: finished_jobs_finished_at, buried_jobs_finished_at.
WITH ended AS MATERIALIZED (
    (
        SELECT
            f.handler,
            f.state,
            CASE WHEN f.state = 'completed' THEN f.attempts - 1 ELSE 0 END AS failed,
            CASE WHEN f.state = 'completed' THEN extract(EPOCH FROM f.finished_at - f.started_at)::float8 END AS took
        FROM queuety.finished_jobs AS f
        WHERE f.finished_at > statement_timestamp() - make_interval(secs => %(window)s::float8)
        LIMIT %(size)s
    )
    UNION ALL
    (
        SELECT b.handler, 'buried'::queuety.job_state, b.attempts, NULL
        FROM queuety.buried_jobs AS b
        WHERE b.finished_at > statement_timestamp() - make_interval(secs => %(window)s::float8)
        LIMIT %(size)s
    )
)
SELECT
    e.handler,
    count(*) FILTER (WHERE e.state = 'completed') AS completed,
    count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE e.state = 'buried') AS buried,
    coalesce(sum(greatest(e.failed, 0)), 0)::bigint AS failed,
    avg(e.took) AS mean,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY e.took) AS p95,
    (sum(count(*)) OVER ())::bigint AS read
FROM ended AS e
GROUP BY e.handler
ORDER BY e.handler
