-- Find those of the running jobs `ids` that somebody has asked to cancel.
-- ids bigint[].  Returns ids.  Locks: none.  Index: jobs_pkey.
SELECT j.id
FROM queuety.jobs AS j
WHERE j.id = ANY (%(ids)s::bigint[])
    AND j.cancel_requested
