-- Look when the next tick is due, and whether a process of its own schedules for the fleet. Each second in each pool.
-- seen float8 (seconds).
-- Returns in_s (seconds from now; NULL: none is to come), whether a buffered tick may run, elsewhere, whether there are
-- schedules.
-- Indexes: schedules_due, schedules_buffered, jobs_pkey, workers_schedulers.  A job is looked up in a subquery of its own:
-- as a join it would be planned over all jobs.
SELECT
    (
        SELECT extract(EPOCH FROM s.next_at - statement_timestamp())::float8
        FROM queuety.schedules AS s
        WHERE s.paused_at IS NULL
            AND s.retired_at IS NULL
            AND s.broken IS NULL
            AND s.next_at IS NOT NULL
        ORDER BY s.next_at
        LIMIT 1
    ) AS in_s,
    EXISTS (
        SELECT
        FROM queuety.schedules AS b
        WHERE b.buffered_at IS NOT NULL
            AND b.paused_at IS NULL
            AND b.retired_at IS NULL
            AND b.broken IS NULL
            AND (SELECT j.id FROM queuety.jobs AS j WHERE j.id = b.last_job) IS NULL
    ) AS free,
    EXISTS (
        SELECT
        FROM queuety.workers AS w
        WHERE w.kind = 'scheduler'
            AND w.seen_at > statement_timestamp() - make_interval(secs => %(seen)s::float8)
    ) AS elsewhere,
    EXISTS (SELECT FROM queuety.schedules) AS any_at_all
