-- Cancel a job that waits, parked or not: move it to the finished table.
-- id bigint.  Returns the id if it was pending.
-- Locks: the row.  Index: jobs_pkey.
-- Calls queuety.ended, once for all of them, if anybody wants to hear of jobs.
WITH gone AS (
    DELETE FROM queuety.jobs AS j
    WHERE j.id = %(id)s::bigint
        AND j.state = 'pending'
    RETURNING
        j.id, j.available_at, j.created_at, j.claimed_at, j.attempts, j.max_attempts, j.priority, j.queue,
        j.handler, j.payload, j.error, j.tags, j.unique_key, j.unique_until, j.worker, j.limits
),
done AS (
    INSERT INTO queuety.finished_jobs (
        id, available_at, created_at, started_at, finished_at, attempts, max_attempts, priority, state, queue,
        handler, payload, error, tags, unique_key, unique_until, worker, limits
    )
    SELECT
        gone.id, gone.available_at, gone.created_at, gone.claimed_at, statement_timestamp(), gone.attempts,
        gone.max_attempts, gone.priority, 'cancelled', gone.queue, gone.handler, gone.payload, gone.error, gone.tags,
        gone.unique_key, gone.unique_until, gone.worker, gone.limits
    FROM gone
    RETURNING id
)
SELECT
    done.id,
    (
        SELECT queuety.ended('cancelled', ARRAY(SELECT every.id FROM done AS every))
        WHERE EXISTS (SELECT FROM queuety.audience)
    )
FROM done
