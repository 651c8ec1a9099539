-- Unpark up to `size` of the jobs parked on each of `keys`, in order: what they wait for is there.
-- keys text[].  size int.  Returns the number of jobs for each queue.
-- Locks: the rows; locked rows are skipped.  Index: jobs_parked, then jobs_pkey.
WITH picked AS MATERIALIZED (
    SELECT job.id
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM queuety.jobs AS j
        WHERE j.parked_on = wanted.key
        ORDER BY j.queue, j.priority, j.available_at, j.id
        LIMIT %(size)s
        FOR UPDATE SKIP LOCKED
    ) AS job
)
UPDATE queuety.jobs AS j
SET parked_on = NULL,
    -- Only the wait for a handler has an end, and goes on if the next one who claims it lacks the handler, too.
    parked_at = CASE WHEN left(j.parked_on, 8) = 'handler:' THEN j.parked_at END
WHERE j.id = ANY (ARRAY(SELECT picked.id FROM picked))
RETURNING j.queue
