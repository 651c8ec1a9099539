-- Count the pending jobs that are left in `queues`, up to `size`.
-- queues text[].  size int.  Locks: none.  Index: jobs_claim.
SELECT count(*)
FROM (
    SELECT 1
    FROM queuety.jobs AS j
    WHERE j.queue = ANY (%(queues)s::text[])
        AND j.state = 'pending'
        AND j.parked_on IS NULL
    LIMIT %(size)s
) AS pending
