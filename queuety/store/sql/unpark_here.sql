-- Unpark up to `size` of the oldest jobs parked on `key` in these queues, in order: for who has room for them.
-- key text.  queues text[].  size int.  Returns the queue of each.
-- Locks: the rows; locked rows are skipped.  Index: jobs_parked, then jobs_pkey.
WITH picked AS MATERIALIZED (
    SELECT j.id
    FROM queuety.jobs AS j
    WHERE j.parked_on = %(key)s
        AND j.queue = ANY (%(queues)s::text[])
    ORDER BY j.priority, j.available_at, j.id
    LIMIT %(size)s
    FOR UPDATE SKIP LOCKED
)
UPDATE queuety.jobs AS j
SET parked_on = NULL,
    parked_at = NULL
WHERE j.id = ANY (ARRAY(SELECT picked.id FROM picked))
RETURNING j.queue
