-- Give back, free, what `worker` was given but never heard of: the answer to its claim was lost on the way.
-- worker text.  leases bigint[]: what it does hold.
-- Returns the ids given back.  Locks: the rows.  Index: jobs_leases.
UPDATE queuety.jobs AS j
SET state = 'pending',
    attempts = j.attempts - 1,
    worker = NULL,
    claimed_at = NULL,
    lease_until = NULL
WHERE j.state = 'processing'
    AND j.lease_until IS NOT NULL
    AND j.worker = %(worker)s
    AND j.lease <> ALL (%(leases)s::bigint[])
RETURNING j.id
