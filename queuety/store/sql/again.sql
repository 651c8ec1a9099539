-- Send the jobs `ids` of `lease` back to pending, each after its delay, and note it in the journal.
-- ids bigint[].  lease bigint.  delays float8[]: seconds from now.  counted boolean[]: false takes the attempt back.
-- errors json[] (NULL keeps the last one).  causes text[]: the event's type.
-- A job that somebody has asked to cancel stays behind for cancel_run.sql.
-- Returns the ids that were really settled.  Locks: the rows.  Index: jobs_pkey.
-- The snapshot still has the time of the claim, which `freed` takes away.
-- Calls queuety.told, once for all of them, if anybody wants to hear of jobs.
WITH verdict AS MATERIALIZED (
    SELECT v.id, v.delay, v.counted, v.error, v.cause
    FROM unnest(
        %(ids)s::bigint[], %(delays)s::float8[], %(counted)s::boolean[], %(errors)s::json[], %(causes)s::text[]
    ) AS v (id, delay, counted, error, cause)
),
freed AS (
    UPDATE queuety.jobs AS j
    SET state = 'pending',
        available_at = statement_timestamp()
            + make_interval(secs => (SELECT v.delay FROM verdict AS v WHERE v.id = j.id)),
        attempts = j.attempts - CASE WHEN (SELECT v.counted FROM verdict AS v WHERE v.id = j.id) THEN 0 ELSE 1 END,
        error = coalesce((SELECT v.error FROM verdict AS v WHERE v.id = j.id), j.error),
        worker = NULL,
        claimed_at = NULL,
        lease_until = NULL,
        parked_at = NULL
    WHERE j.id = ANY (%(ids)s::bigint[])
        AND j.lease = %(lease)s
        AND j.state = 'processing'
        AND NOT j.cancel_requested
    RETURNING j.id, j.attempts, j.available_at
),
noted AS (
    INSERT INTO queuety.job_events (job_id, attempt, type, data)
    SELECT
        freed.id, freed.attempts, v.cause,
        json_build_object(
            'error', v.error, 'delay_s', v.delay, 'available_at', freed.available_at,
            'started_at', (SELECT j.claimed_at FROM queuety.jobs AS j WHERE j.id = freed.id)
        )
    FROM freed
    INNER JOIN verdict AS v ON v.id = freed.id
    RETURNING job_id
)
SELECT
    noted.job_id,
    (
        SELECT queuety.told(ARRAY(SELECT every.job_id FROM noted AS every))
        WHERE EXISTS (SELECT FROM queuety.audience)
    )
FROM noted
