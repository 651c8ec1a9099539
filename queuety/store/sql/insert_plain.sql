-- Write one job that is due now and has no frills, and wake a pool only if one sleeps on this queue; see insert.sql.
-- handler, payload, queue text.  priority, max_attempts int.  Returns id.  Index: sleepers_pkey.
INSERT INTO queuety.jobs (handler, payload, queue, priority, max_attempts)
VALUES (%(handler)s, %(payload)s::json, %(queue)s, %(priority)s::smallint, %(max_attempts)s::int)
RETURNING
    id,
    (
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM queuety.sleepers AS s
        WHERE s.queue = %(queue)s
        LIMIT 1
    )
