-- How many jobs have been pending for long, by handler, without locking: they were due that long ago and do not run.
-- longer float8 (seconds).  size int: count no more of a lane, and no more of what is parked.
-- Returns a row for each handler: handler, pending, parked (of these), oldest (seconds that the oldest has waited).
-- Indexes: jobs_claim, jobs_parked.
WITH RECURSIVE lanes AS (
    (
        SELECT j.queue, j.priority
        FROM queuety.jobs AS j
        WHERE j.state = 'pending' AND j.parked_on IS NULL
        ORDER BY j.queue, j.priority
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.priority
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT j.queue, j.priority
        FROM queuety.jobs AS j
        WHERE j.state = 'pending'
            AND j.parked_on IS NULL
            AND (j.queue, j.priority) > (lanes.queue, lanes.priority)
        ORDER BY j.queue, j.priority
        LIMIT 1
    ) AS next
),
waiting AS (
    SELECT job.handler, job.available_at, false AS parked
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT j.handler, j.available_at
        FROM queuety.jobs AS j
        WHERE j.state = 'pending'
            AND j.parked_on IS NULL
            AND j.queue = lanes.queue
            AND j.priority = lanes.priority
            AND j.available_at < statement_timestamp() - make_interval(secs => %(longer)s::float8)
        ORDER BY j.available_at
        LIMIT %(size)s
    ) AS job
    UNION ALL
    (
        SELECT j.handler, j.available_at, true
        FROM queuety.jobs AS j
        WHERE j.parked_on IS NOT NULL
            AND j.available_at < statement_timestamp() - make_interval(secs => %(longer)s::float8)
        LIMIT %(size)s
    )
)
SELECT
    w.handler,
    count(*) AS pending,
    count(*) FILTER (WHERE w.parked) AS parked,
    extract(EPOCH FROM statement_timestamp() - min(w.available_at))::float8 AS oldest
FROM waiting AS w
GROUP BY w.handler
