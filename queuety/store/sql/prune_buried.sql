-- Delete buried jobs that are older than so many days, the oldest first.
-- days int.  "limit" int: at most so many.  Returns how many.
-- Locks: the rows, skipping locked ones, so it never waits.  Index: buried_jobs_finished_at, whose order it takes:
-- ordered by id, it would walk every job that is kept.
WITH old AS MATERIALIZED (
    SELECT id
    FROM queuety.buried_jobs
    WHERE finished_at < now() - make_interval(days => %(days)s::int)
    ORDER BY finished_at
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM queuety.buried_jobs AS b
    USING old
    WHERE b.id = old.id
    RETURNING b.id
)
SELECT count(*) FROM gone
