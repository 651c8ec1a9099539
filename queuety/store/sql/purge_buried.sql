-- Delete up to `size` buried jobs that ended before a time, in the order of their ids, with their journals and the
-- unique keys that they still hold.
-- first bigint: ids from here on.  before float8: seconds since 1970.  queue text (NULL: any).  size int.
-- Returns how many, and the last id.
-- Locks: the rows; locked rows are skipped.  Index: buried_jobs_pkey, job_events_job, unique_keys_pkey.
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
    RETURNING b.id, b.unique_key
),
freed AS (
    DELETE FROM queuety.unique_keys AS u
    WHERE u.key = ANY (ARRAY(
            SELECT k.key
            FROM queuety.unique_keys AS k
            INNER JOIN gone ON gone.id = k.job_id
            WHERE k.key = ANY (ARRAY(SELECT gone.unique_key FROM gone))
            ORDER BY k.key COLLATE "C"
            FOR UPDATE OF k
        ))
),
journal AS (
    DELETE FROM queuety.job_events AS e
    WHERE e.job_id = ANY (ARRAY(SELECT gone.id FROM gone))
)
SELECT count(*), max(gone.id)
FROM gone
