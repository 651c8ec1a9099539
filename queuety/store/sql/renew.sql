-- Renew the leases of jobs whose workers are alive.
-- ids, leases bigint[]: what the ledgers hold; a lease number is used by one claim only, so the two need no pairing
-- beyond the check that the caller makes on what comes back.  stale float8: seconds.
-- Returns id, lease and whether somebody has asked to cancel.  Locks: the rows.  Index: jobs_pkey.
UPDATE queuety.jobs AS j
SET lease_until = statement_timestamp() + make_interval(secs => %(stale)s::float8)
WHERE j.id = ANY (%(ids)s::bigint[])
    AND j.lease = ANY (%(leases)s::bigint[])
    AND j.state = 'processing'
RETURNING j.id, j.lease, j.cancel_requested
