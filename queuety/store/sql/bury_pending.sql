-- Bury a job that waits, parked or not, and note it in the journal.
-- id bigint.  error json.  Returns the id if it was pending.
-- Locks: the row.  Index: jobs_pkey.
-- Calls queuety.ended, once for all of them, if anybody wants to hear of jobs.
WITH gone AS (
    DELETE FROM queuety.jobs AS j
    WHERE j.id = %(id)s::bigint
        AND j.state = 'pending'
    RETURNING
        j.id, j.available_at, j.created_at, j.claimed_at, j.attempts, j.max_attempts, j.priority, j.queue,
        j.handler, j.payload, j.tags, j.unique_key, j.unique_until, j.worker, j.backoff, j.limits
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT gone.id, gone.attempts, 'buried', json_build_object('error', %(error)s::json)
    FROM gone
),
done AS (
    INSERT INTO queuety.buried_jobs (
        id, available_at, created_at, started_at, finished_at, attempts, max_attempts, priority, queue,
        handler, payload, error, tags, unique_key, unique_until, worker, backoff, limits
    )
    SELECT
        gone.id, gone.available_at, gone.created_at, gone.claimed_at, statement_timestamp(), gone.attempts,
        gone.max_attempts, gone.priority, gone.queue, gone.handler, gone.payload, %(error)s::json, gone.tags,
        gone.unique_key, gone.unique_until, gone.worker, gone.backoff, gone.limits
    FROM gone
    RETURNING id
)
SELECT
    done.id,
    (
        SELECT queuety.ended('buried', ARRAY(SELECT every.id FROM done AS every))
        WHERE EXISTS (SELECT FROM queuety.audience)
    )
FROM done
