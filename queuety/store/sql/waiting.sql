-- Find the keys from `from_key` up to before `to_key` that jobs are parked on, whatever their number: one step a key.
-- from_key text.  to_key text.
-- The comparisons are those of the index, by bytes.
-- Returns up to 100 keys.  Locks: none.  Index: jobs_parked.
WITH RECURSIVE keys (key) AS (
    (
        SELECT j.parked_on
        FROM queuety.jobs AS j
        WHERE j.parked_on ~>=~ %(from_key)s
            AND j.parked_on ~<~ %(to_key)s
        ORDER BY j.parked_on USING ~<~
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT j.parked_on
        FROM queuety.jobs AS j
        WHERE j.parked_on ~>~ keys.key
            AND j.parked_on ~<~ %(to_key)s
        ORDER BY j.parked_on USING ~<~
        LIMIT 1
    )
    FROM keys
    WHERE keys.key IS NOT NULL
)
SELECT keys.key
FROM keys
WHERE keys.key IS NOT NULL
LIMIT 100
