-- Forget starts that no window can hold any more.
-- longest float8: seconds of the longest window.  Returns keys.  Locks: the rows; locked rows are skipped.
DELETE FROM queuety.starts AS s
WHERE (s.key, s.lease) IN (
        SELECT o.key, o.lease
        FROM queuety.starts AS o
        WHERE o.begun_by < statement_timestamp() - make_interval(secs => %(longest)s::float8)
        FOR UPDATE SKIP LOCKED
    )
RETURNING s.key
