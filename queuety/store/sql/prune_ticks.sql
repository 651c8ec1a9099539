-- Forget ticks that were noted more than `days` days ago, the oldest first.
-- days, limit int.
-- Locks them; locked ones are skipped.  Indexes: schedule_ticks_noted.
DELETE FROM queuety.schedule_ticks AS t
WHERE t.ctid = ANY (ARRAY(
    SELECT o.ctid
    FROM queuety.schedule_ticks AS o
    WHERE o.noted_at < statement_timestamp() - make_interval(days => %(days)s::int)
    ORDER BY o.noted_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
