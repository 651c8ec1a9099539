-- Resume a queue, and wake a pool that sleeps on it.
-- queue text.  Returns whether the pause still held; no row if there was none.
-- Locks: the row.  Index: queues_pkey, sleepers_pkey.
WITH old AS (
    SELECT q.name, q.paused_until
    FROM queuety.queues AS q
    WHERE q.name = %(queue)s::text
        AND q.paused_at IS NOT NULL
    FOR UPDATE
),
resumed AS (
    UPDATE queuety.queues AS q
    SET paused_at = NULL,
        paused_until = NULL,
        pause_reason = NULL
    FROM old
    WHERE q.name = old.name
)
SELECT
    coalesce(old.paused_until > statement_timestamp(), true),
    (
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM queuety.sleepers AS s
        WHERE s.queue = old.name
        LIMIT 1
    )
FROM old
