-- Park the jobs `ids` of `lease`, free: they wait for `key` and are out of every claim until it is there.
-- ids bigint[].  lease bigint.  keys text[].
-- Returns the ids that were really parked.  Locks: the rows.  Index: jobs_pkey.
UPDATE queuety.jobs AS j
SET state = 'pending',
    attempts = j.attempts - 1,
    worker = NULL,
    claimed_at = NULL,
    lease_until = NULL,
    parked_at = coalesce(j.parked_at, statement_timestamp()),
    parked_on = (
        SELECT p.key FROM unnest(%(ids)s::bigint[], %(keys)s::text[]) AS p (id, key) WHERE p.id = j.id
    )
WHERE j.id = ANY (%(ids)s::bigint[])
    AND j.lease = %(lease)s
    AND j.state = 'processing'
    AND NOT j.cancel_requested
RETURNING j.id
