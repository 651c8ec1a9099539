-- Unpark up to `size` of the jobs parked on `key` in these queues, in order: for who has room for them.
-- key text.  queues text[]: in claim order.  size int.  Returns the queue of each.
-- Locks: the rows; locked rows are skipped.  Index: jobs_parked, then jobs_pkey.
WITH picked AS MATERIALIZED (
    SELECT job.id
    FROM unnest(%(queues)s::text[]) AS lane (queue)
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM queuety.jobs AS j
        WHERE j.parked_on = %(key)s
            AND j.queue = lane.queue
        ORDER BY j.priority, j.available_at, j.id
        LIMIT %(size)s
        FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(size)s
)
UPDATE queuety.jobs AS j
SET parked_on = NULL,
    parked_at = NULL
WHERE j.id = ANY (ARRAY(SELECT picked.id FROM picked))
RETURNING j.queue
