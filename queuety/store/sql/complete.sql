-- Settle as completed the jobs `ids` of `lease`: move them to the finished table.
-- ids bigint[].  lease bigint.  began, ended float8[]: seconds after the claim.  results, errors json[] (NULL: none).
-- Returns the ids that were really settled: a job of another lease is not among them.
-- Locks: the rows.  Index: jobs_pkey.
-- Calls queuety.ended, once for all of them, if anybody wants to hear of jobs.
WITH gone AS (
    DELETE FROM queuety.jobs AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
        AND j.lease = %(lease)s
        AND j.state = 'processing'
    RETURNING
        j.id, j.available_at, j.created_at, j.claimed_at, j.attempts, j.max_attempts, j.priority, j.queue,
        j.handler, j.payload, j.tags, j.unique_key, j.worker
),
done AS (
    INSERT INTO queuety.finished_jobs (
        id, available_at, created_at, started_at, finished_at, attempts, max_attempts, priority, state, queue,
        handler, payload, result, error, tags, unique_key, worker
    )
    SELECT
        gone.id, gone.available_at, gone.created_at,
        gone.claimed_at + make_interval(secs => run.began),
        gone.claimed_at + make_interval(secs => run.ended),
        gone.attempts, gone.max_attempts, gone.priority, 'completed', gone.queue,
        gone.handler, gone.payload, run.result, run.error, gone.tags, gone.unique_key, gone.worker
    FROM gone
    INNER JOIN unnest(
        %(ids)s::bigint[], %(began)s::float8[], %(ended)s::float8[], %(results)s::json[], %(errors)s::json[]
    ) AS run (id, began, ended, result, error) ON run.id = gone.id
    RETURNING id
)
SELECT
    done.id,
    (
        SELECT queuety.ended('completed', ARRAY(SELECT every.id FROM done AS every))
        WHERE EXISTS (SELECT FROM queuety.audience)
    )
FROM done
