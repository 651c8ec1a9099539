-- Look how deep queues are, without locking. Now and then in each pool that tells its metrics.
-- queues text[].  size int: count no further, of each state and queue; of what is parked or buried, over all queues.
-- late float8 (seconds): a schedule whose tick is late by more is overdue.
-- Returns a row for each queue: queue, due, later, parked, buried, oldest (seconds that the oldest due job has waited),
-- overdue (schedules, the same in each row).
-- Index: jobs_claim, jobs_parked, buried_jobs_finished_at.
WITH parked AS MATERIALIZED (
    SELECT found.queue, count(*) AS jobs
    FROM (SELECT j.queue FROM queuety.jobs AS j WHERE j.parked_on IS NOT NULL LIMIT %(size)s) AS found
    GROUP BY found.queue
),
buried AS MATERIALIZED (
    SELECT found.queue, count(*) AS jobs
    FROM (
        SELECT b.queue
        FROM queuety.buried_jobs AS b
        ORDER BY b.finished_at DESC
        LIMIT %(size)s
    ) AS found
    GROUP BY found.queue
),
lanes AS MATERIALIZED (
    SELECT
        lane.queue,
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM queuety.jobs AS j
                WHERE j.state = 'pending'
                    AND j.parked_on IS NULL
                    AND j.queue = lane.queue
                    AND j.priority = lane.priority
                    AND j.available_at <= statement_timestamp()
                ORDER BY j.available_at
                LIMIT %(size)s
            ) AS due
        ) AS due,
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM queuety.jobs AS j
                WHERE j.state = 'pending'
                    AND j.parked_on IS NULL
                    AND j.queue = lane.queue
                    AND j.priority = lane.priority
                    AND j.available_at > statement_timestamp()
                ORDER BY j.available_at
                LIMIT %(size)s
            ) AS later
        ) AS later,
        (
            SELECT j.available_at
            FROM queuety.jobs AS j
            WHERE j.state = 'pending'
                AND j.parked_on IS NULL
                AND j.queue = lane.queue
                AND j.priority = lane.priority
                AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at, j.id
            LIMIT 1
        ) AS oldest
    FROM (
        SELECT q.queue, p.priority
        FROM unnest(%(queues)s::text[]) AS q (queue)
        CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS p (priority)
    ) AS lane
)
SELECT
    lanes.queue,
    least(sum(lanes.due), %(size)s)::bigint AS due,
    least(sum(lanes.later), %(size)s)::bigint AS later,
    coalesce(max(parked.jobs), 0) AS parked,
    coalesce(max(buried.jobs), 0) AS buried,
    coalesce(greatest(extract(EPOCH FROM statement_timestamp() - min(lanes.oldest)), 0), 0)::float8 AS oldest,
    (
        SELECT count(*)
        FROM queuety.schedules AS s
        WHERE s.paused_at IS NULL
            AND s.retired_at IS NULL
            AND s.broken IS NULL
            AND s.next_at < statement_timestamp() - make_interval(secs => %(late)s::float8)
    ) AS overdue
FROM lanes
LEFT JOIN parked ON parked.queue = lanes.queue
LEFT JOIN buried ON buried.queue = lanes.queue
GROUP BY lanes.queue
