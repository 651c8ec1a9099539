-- Add an event to the journal of a running job, and tell those who watch it.
-- id, lease bigint.  kind text.  data json.
-- Returns the id if the lease still holds.  Locks: the row, shared.  Index: jobs_pkey.
-- The lock comes before the event's number: whoever else writes to this journal changes the job's row first, so that
-- the numbers of one job become visible in their order. A reader that has gone past one has seen all before it.
WITH job AS MATERIALIZED (
    SELECT j.id, j.attempts
    FROM queuety.jobs AS j
    WHERE j.id = %(id)s::bigint
        AND j.lease = %(lease)s::bigint
        AND j.state = 'processing'
    FOR SHARE
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT job.id, job.attempts, %(kind)s::text, %(data)s::json
    FROM job
    RETURNING job_id
)
SELECT
    noted.job_id,
    (SELECT queuety.told(ARRAY[noted.job_id]) WHERE EXISTS (SELECT FROM queuety.audience))
FROM noted
