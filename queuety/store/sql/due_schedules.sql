-- Lock schedules of which a tick is due, or whose buffered tick waits for a job that has ended.
-- limit int.  behind float8: seconds for which it must have been due.
-- Returns now, a column of no use, and the columns of the schedule, in no order: to be had in one, they would be walked by schedules_due.
-- A process that is suspended now would keep them locked: the server ends its transaction after five seconds.
-- Locks the rows; those that are locked are skipped: another process is at them, and no tick runs twice. The conditions
-- stand twice, since they are held against the row again once it is locked; in other words, or schedules_due would do.
-- Indexes: schedules_due, schedules_buffered, schedules_pkey, jobs_pkey.  The keys are an array: a join would read all.
SELECT
    statement_timestamp(),
    set_config('idle_in_transaction_session_timeout', '5000', true),
    s.key, s.handler, s.payload, s.job, s.cron, s.every_s, s.timezone, s.starts_at, s.ends_at, s.jitter_s,
    s.overlap, s.missed, s.missed_limit, s.declared_by, s.anchor, s.next_at, s.buffered_at, s.last_at, s.last_job,
    s.paused_at, s.pause_reason, s.retired_at, s.broken, s.created_at, s.changed_at
FROM queuety.schedules AS s
WHERE s.key = ANY (ARRAY(
    (
        SELECT d.key
        FROM queuety.schedules AS d
        WHERE d.paused_at IS NULL
            AND d.retired_at IS NULL
            AND d.broken IS NULL
            AND d.next_at <= statement_timestamp() - make_interval(secs => %(behind)s::float8)
        ORDER BY d.next_at
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT b.key
        FROM queuety.schedules AS b
        WHERE b.buffered_at IS NOT NULL
            AND b.paused_at IS NULL
            AND b.retired_at IS NULL
            AND b.broken IS NULL
            AND (SELECT j.id FROM queuety.jobs AS j WHERE j.id = b.last_job) IS NULL
        LIMIT %(limit)s
    )
))
    AND num_nulls(s.paused_at, s.retired_at, s.broken) = 3
    AND (
        s.next_at <= statement_timestamp() - make_interval(secs => %(behind)s::float8)
        OR s.buffered_at IS NOT NULL
    )
FOR UPDATE OF s SKIP LOCKED
