-- Write one job if its unique key is free, and wake a pool only if one sleeps on its queue; see insert.sql.
-- unique_key text.  unique_until text: start, end or window.  unique_for float8: seconds of a window.
-- locking boolean: lock the key also if it is held.  The rest as for insert.sql.
-- Returns the id of the job that has the key, and whether that is the one written.
-- Locks: the key (see take_keys, in the migrations), and waits for whoever has taken it and not committed.  Index: sleepers_pkey.
WITH mine AS MATERIALIZED (
    SELECT nextval(pg_get_serial_sequence('queuety.jobs', 'id')) AS id
),
taken AS MATERIALIZED (
    SELECT mine.id, t.holder
    FROM mine
    CROSS JOIN LATERAL queuety.take_keys(
        ARRAY[%(unique_key)s::text], ARRAY[mine.id], ARRAY[%(unique_until)s::text],
        ARRAY[%(unique_for)s::float8], %(locking)s::boolean
    ) AS t
),
job AS (
    INSERT INTO queuety.jobs (
        id, handler, payload, queue, priority, max_attempts, available_at, tags, unique_key, unique_until, backoff,
        limits, parked_on, parked_at
    )
    SELECT
        taken.id, %(handler)s, %(payload)s::json, %(queue)s, %(priority)s::smallint, %(max_attempts)s::int,
        due.at, %(tags)s::text[], %(unique_key)s, %(unique_until)s, %(backoff)s::json, due.limits, waits.key,
        CASE WHEN waits.key IS NOT NULL THEN statement_timestamp() END
    FROM taken
    CROSS JOIN (
        SELECT
            coalesce(
                %(due)s::timestamptz,
                statement_timestamp() + make_interval(secs => coalesce(%(delay)s::float8, 0))
            ) AS at,
            %(limits)s::jsonb AS limits
    ) AS due
    CROSS JOIN LATERAL (
        SELECT CASE WHEN due.at <= statement_timestamp() THEN queuety.waits_for(due.limits) END AS key
    ) AS waits
    WHERE taken.holder = taken.id
    RETURNING id, queue, available_at, parked_on
)
SELECT
    taken.holder,
    taken.holder = taken.id,
    (
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM queuety.sleepers AS s
        WHERE s.queue = job.queue AND job.available_at <= statement_timestamp() AND job.parked_on IS NULL
        LIMIT 1
    )
FROM taken
LEFT JOIN job ON job.id = taken.id
