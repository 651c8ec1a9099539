-- Note how the jobs of ticks have ended, for up to `limit` open ticks behind the job id `after`.
-- after bigint.  limit int.
-- Returns the job id to go on behind (0: those were the last), and the columns of each tick that has ended; one row of
-- NULLs besides the id if none has.
-- Locks these ticks; locked ones are skipped, so that each end is told once over the fleet.
-- A job ends after its tick was noted (a day is allowed for the clock): days of finished_jobs before are not looked at.
-- Indexes: schedule_ticks_open, jobs_pkey, finished_jobs_pkey, buried_jobs_pkey.  The ids are arrays: joins would read all.
WITH looked AS (
    SELECT t.job_id
    FROM queuety.schedule_ticks AS t
    WHERE t.job_id > %(after)s AND t.job_id IS NOT NULL AND t.ended IS NULL
    ORDER BY t.job_id
    LIMIT %(limit)s
),
over AS (
    SELECT t.schedule, t.at, t.job_id, t.noted_at
    FROM queuety.schedule_ticks AS t
    WHERE t.job_id = ANY (ARRAY(SELECT l.job_id FROM looked AS l))
        AND t.ended IS NULL
        AND (SELECT j.id FROM queuety.jobs AS j WHERE j.id = t.job_id) IS NULL
    FOR UPDATE OF t SKIP LOCKED
),
finished AS MATERIALIZED (
    SELECT f.id, f.state, f.finished_at
    FROM queuety.finished_jobs AS f
    WHERE f.id = ANY (ARRAY(SELECT o.job_id FROM over AS o))
        AND f.finished_at >= (SELECT min(o.noted_at) FROM over AS o) - interval '1 day'
),
buried AS MATERIALIZED (
    SELECT b.id, b.error, b.finished_at
    FROM queuety.buried_jobs AS b
    WHERE b.id = ANY (ARRAY(SELECT o.job_id FROM over AS o))
),
ends AS (
    UPDATE queuety.schedule_ticks AS t
    SET
        ended = CASE
            WHEN f.state = 'completed' THEN 'done'
            WHEN f.state = 'cancelled' OR b.id IS NOT NULL THEN 'fail'
            ELSE 'gone'
        END,
        error = CASE
            WHEN f.state = 'cancelled' THEN '{"type": "JobCancelled", "message": "the job was cancelled"}'::json
            ELSE b.error
        END,
        ended_at = coalesce(f.finished_at, b.finished_at, statement_timestamp())
    FROM over AS o
    LEFT JOIN finished AS f ON f.id = o.job_id
    LEFT JOIN buried AS b ON b.id = o.job_id
    WHERE t.schedule = o.schedule
        AND t.at = o.at
        AND t.ended IS NULL
        AND t.job_id = ANY (ARRAY(SELECT v.job_id FROM over AS v))
    RETURNING t.schedule, t.at, t.kind, t.reason, t.job_id, t.through, t.ticks, t.ended, t.error, t.noted_at, t.ended_at
),
onward AS (
    SELECT CASE WHEN count(*) = %(limit)s THEN max(l.job_id) ELSE 0 END AS after
    FROM looked AS l
)
SELECT
    w.after, e.schedule, e.at, e.kind, e.reason, e.job_id, e.through, e.ticks, e.ended, e.error, e.noted_at, e.ended_at
FROM onward AS w
LEFT JOIN ends AS e ON true
ORDER BY e.at
