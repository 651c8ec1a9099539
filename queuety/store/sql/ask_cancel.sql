-- Ask for a running job to be cancelled: mark it, note it in the journal, and tell the pools and those who watch it.
-- The mark alone is enough: whoever renews the lease reads it. The notification makes it quick.
-- id bigint.  Returns the id if the job is running and nobody had asked before.
-- Locks: the row.  Index: jobs_pkey.
WITH asked AS (
    UPDATE queuety.jobs AS j
    SET cancel_requested = true
    WHERE j.id = %(id)s::bigint
        AND j.state = 'processing'
        AND NOT j.cancel_requested
    RETURNING j.id, j.attempts
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type)
    SELECT asked.id, asked.attempts, 'cancel_requested'
    FROM asked
)
SELECT
    asked.id,
    pg_notify('queuety', 'c:' || asked.id),
    (SELECT queuety.told(ARRAY[asked.id]) WHERE EXISTS (SELECT FROM queuety.audience))
FROM asked
