-- Count the pending jobs that are left in those of `queues` that are not paused, up to `size`.
-- queues text[].  size int.  Locks: none.  Index: jobs_claim.
SELECT count(*)
FROM (
    SELECT 1
    FROM queuety.jobs AS j
    WHERE j.queue = ANY (%(queues)s::text[])
        AND j.state = 'pending'
        AND j.parked_on IS NULL
        AND NOT EXISTS (
            SELECT
            FROM queuety.queues AS q
            WHERE q.name = j.queue
                AND q.paused_at IS NOT NULL
                AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp())
        )
    LIMIT %(size)s
) AS pending
