-- Look, without locking, how much is due in the lanes and when the next job falls due.
-- queues text[], priorities smallint[].  size int: count no further.  handlers text[]: of what is so looked at only
-- their jobs count (NULL: all).
-- Returns due (0..size) and next_s, the seconds until the next job falls due (NULL: none).
-- Index: jobs_claim.
WITH lanes AS MATERIALIZED (
    SELECT lane.queue, lane.priority
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS lane (queue, priority)
    WHERE NOT coalesce(
        (
            SELECT q.paused_at IS NOT NULL AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp())
            FROM queuety.queues AS q
            WHERE q.name = lane.queue
        ),
        false
    )
)
SELECT
    (
        SELECT count(*) FILTER (WHERE %(handlers)s::text[] IS NULL OR due.handler = ANY (%(handlers)s::text[]))
        FROM (
            SELECT job.handler
            FROM lanes
            CROSS JOIN LATERAL (
                SELECT j.handler
                FROM queuety.jobs AS j
                WHERE j.state = 'pending'
                    AND j.parked_on IS NULL
                    AND j.queue = lanes.queue
                    AND j.priority = lanes.priority
                    AND j.available_at <= statement_timestamp()
                ORDER BY j.available_at, j.id
                LIMIT %(size)s
            ) AS job
            LIMIT %(size)s
        ) AS due
    ) AS due,
    (
        SELECT extract(EPOCH FROM min(soon.available_at) - statement_timestamp())::float8
        FROM lanes
        CROSS JOIN LATERAL (
            SELECT j.available_at
            FROM queuety.jobs AS j
            WHERE j.state = 'pending'
                AND j.parked_on IS NULL
                AND j.queue = lanes.queue
                AND j.priority = lanes.priority
                AND j.available_at > statement_timestamp()
            ORDER BY j.available_at, j.id
            LIMIT 1
        ) AS soon
    ) AS next_s
