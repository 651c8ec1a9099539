-- Delete up to `size` buried jobs that ended before a time, with their journals, in the order of their ids.
-- first bigint: ids from here on.  before float8: seconds since 1970.  queue text (NULL: any).  size int.
-- Returns how many, and the last id.
-- Locks: the rows; locked rows are skipped.  Index: buried_jobs_pkey, job_events_job.
WITH old AS MATERIALIZED (
    SELECT b.id
    FROM queuety.buried_jobs AS b
    WHERE b.id >= %(first)s::bigint
        AND b.finished_at <= to_timestamp(%(before)s::float8)
        AND (%(queue)s::text IS NULL OR b.queue = %(queue)s::text)
    ORDER BY b.id
    LIMIT %(size)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM queuety.buried_jobs AS b
    WHERE b.id = ANY (ARRAY(SELECT old.id FROM old))
    RETURNING b.id
),
journal AS (
    DELETE FROM queuety.job_events AS e
    WHERE e.job_id = ANY (ARRAY(SELECT gone.id FROM gone))
)
SELECT count(*), max(gone.id)
FROM gone
