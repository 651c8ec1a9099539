-- Bury the jobs `ids` of `lease` with their errors, and note it in the journal.
-- ids bigint[].  lease bigint.  errors json[].  began, ended float8[]: seconds after the claim.
-- Returns the ids that were really settled.  Locks: the rows.  Index: jobs_pkey.
-- Calls queuety.ended, once for all of them, if anybody wants to hear of jobs.
WITH gone AS (
    DELETE FROM queuety.jobs AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
        AND j.lease = %(lease)s
        AND j.state = 'processing'
    RETURNING
        j.id, j.available_at, j.created_at, j.claimed_at, j.attempts, j.max_attempts, j.priority, j.queue,
        j.handler, j.payload, j.tags, j.unique_key, j.unique_until, j.worker, j.backoff, j.limits
),
run AS MATERIALIZED (
    SELECT r.id, r.error, r.began, r.ended
    FROM unnest(%(ids)s::bigint[], %(errors)s::json[], %(began)s::float8[], %(ended)s::float8[])
        AS r (id, error, began, ended)
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT
        gone.id, gone.attempts, 'buried',
        json_build_object('error', run.error, 'started_at', gone.claimed_at + make_interval(secs => run.began))
    FROM gone
    INNER JOIN run ON run.id = gone.id
),
done AS (
    INSERT INTO queuety.buried_jobs (
        id, available_at, created_at, started_at, finished_at, attempts, max_attempts, priority, queue,
        handler, payload, error, tags, unique_key, unique_until, worker, backoff, limits
    )
    SELECT
        gone.id, gone.available_at, gone.created_at,
        gone.claimed_at + make_interval(secs => run.began),
        gone.claimed_at + make_interval(secs => run.ended),
        gone.attempts, gone.max_attempts, gone.priority, gone.queue,
        gone.handler, gone.payload, run.error, gone.tags, gone.unique_key, gone.unique_until, gone.worker,
        gone.backoff, gone.limits
    FROM gone
    INNER JOIN run ON run.id = gone.id
    RETURNING id
)
SELECT
    done.id,
    (
        SELECT queuety.ended('buried', ARRAY(SELECT every.id FROM done AS every))
        WHERE EXISTS (SELECT FROM queuety.audience)
    )
FROM done
