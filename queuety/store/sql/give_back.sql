-- Give the jobs `ids` of `lease` back, free, at their old place: they were never begun, or our own stop cut them.
-- ids bigint[].  lease bigint.
-- A job that somebody has asked to cancel stays behind for cancel_run.sql.
-- Returns the ids that were really given back.  Locks: the rows.  Index: jobs_pkey.
UPDATE queuety.jobs AS j
SET state = 'pending',
    attempts = j.attempts - 1,
    worker = NULL,
    claimed_at = NULL,
    lease_until = NULL
WHERE j.id = ANY (%(ids)s::bigint[])
    AND j.lease = %(lease)s
    AND j.state = 'processing'
    AND NOT j.cancel_requested
RETURNING j.id
