-- Delete up to `size` completed and cancelled jobs that ended before a time, in the order of their ids, with their
-- journals and the unique keys that they still hold.
-- first bigint: ids from here on.  before float8: seconds since 1970.  state, queue text (NULL: any).  size int.
-- Returns how many were completed and how many cancelled, and the last id.
-- Locks: the rows; locked rows are skipped.  Index: finished_jobs_pkey of each day, merged;
-- job_events_job, unique_keys_pkey.
WITH old AS MATERIALIZED (
    SELECT f.id
    FROM queuety.finished_jobs AS f
    WHERE f.id >= %(first)s::bigint
        AND f.finished_at <= to_timestamp(%(before)s::float8)
        AND (%(state)s::text IS NULL OR f.state::text = %(state)s::text)
        AND (%(queue)s::text IS NULL OR f.queue = %(queue)s::text)
    ORDER BY f.id
    LIMIT %(size)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM queuety.finished_jobs AS f
    WHERE f.id = ANY (ARRAY(SELECT old.id FROM old))
    RETURNING f.id, f.state, f.unique_key
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
SELECT
    count(*) FILTER (WHERE gone.state = 'completed'),
    count(*) FILTER (WHERE gone.state = 'cancelled'),
    max(gone.id)
FROM gone
