-- Delete a job that does not run, with its journal; tell those who watch it.
-- id bigint.  Returns the id if it was there and not running.
-- Locks: the rows.  Index: jobs_pkey, finished_jobs_pkey, buried_jobs_pkey, job_events_job.
WITH waiting AS (
    DELETE FROM queuety.jobs AS j
    WHERE j.id = %(id)s::bigint
        AND j.state = 'pending'
    RETURNING j.id
),
finished AS (
    DELETE FROM queuety.finished_jobs AS f
    WHERE f.id = %(id)s::bigint
    RETURNING f.id
),
buried AS (
    DELETE FROM queuety.buried_jobs AS b
    WHERE b.id = %(id)s::bigint
    RETURNING b.id
),
gone AS (
    SELECT waiting.id FROM waiting
    UNION ALL
    SELECT finished.id FROM finished
    UNION ALL
    SELECT buried.id FROM buried
),
journal AS (
    DELETE FROM queuety.job_events AS e
    WHERE e.job_id = ANY (ARRAY(SELECT gone.id FROM gone))
)
SELECT
    gone.id,
    (SELECT queuety.told(ARRAY[gone.id]) WHERE EXISTS (SELECT FROM queuety.audience))
FROM gone
