-- Lock up to `size` jobs whose lease has run out, to be settled in this same transaction.
-- size int.  Returns the facts that a verdict needs.
-- Locks: the rows; locked rows are skipped, so recoveries never wait for one another.  Index: jobs_leases.
SELECT j.id, j.lease, j.attempts, j.max_attempts, j.cancel_requested, j.backoff::text, j.handler,
    j.worker, j.limits::text, j.metered, j.queue
FROM queuety.jobs AS j
WHERE j.state = 'processing'
    AND j.lease_until < statement_timestamp()
ORDER BY j.lease_until, j.id
LIMIT %(size)s
FOR UPDATE SKIP LOCKED
