-- Pause a queue, or change reason and end of a pause; a pause that holds keeps its beginning.
-- queue text.  reason text (NULL: none).  until timestamptz (NULL: until resumed).
-- Returns no row if `until` has passed.  Locks: the row.  Index: queues_pkey.
INSERT INTO queuety.queues AS q (name, paused_at, paused_until, pause_reason)
SELECT %(queue)s::text, statement_timestamp(), %(until)s::timestamptz, %(reason)s::text
WHERE coalesce(%(until)s::timestamptz > statement_timestamp(), true)
ON CONFLICT (name) DO UPDATE
SET paused_at = CASE
        WHEN q.paused_until <= statement_timestamp() THEN excluded.paused_at
        ELSE coalesce(q.paused_at, excluded.paused_at)
    END,
    paused_until = excluded.paused_until,
    pause_reason = excluded.pause_reason
RETURNING q.name
