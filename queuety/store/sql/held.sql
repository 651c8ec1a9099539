-- Lock the jobs `ids` of `lease`, to be settled in this same transaction for a worker that is gone.
-- ids bigint[].  lease bigint.  Returns the facts that a verdict needs.
-- Locks: the rows, in the order of their ids.  Index: jobs_pkey.
SELECT j.id, j.lease, j.attempts, j.max_attempts, j.cancel_requested, j.backoff::text, j.handler,
    j.worker, j.limits::text, j.metered, j.queue
FROM queuety.jobs AS j
WHERE j.id = ANY (%(ids)s::bigint[])
    AND j.lease = %(lease)s
    AND j.state = 'processing'
ORDER BY j.id
FOR UPDATE
