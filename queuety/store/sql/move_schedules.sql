-- Move schedules, whose rows are locked, on to their next tick.
-- schedules text: JSON array of {"key", "next_at", "buffered_at", "last_at", "last_job", "broken"}.
-- Locks the rows until the commit.  Indexes: schedules_pkey.  The keys are an array: a join alone would read all.
UPDATE queuety.schedules AS s
SET
    next_at = m.next_at,
    buffered_at = m.buffered_at,
    last_at = coalesce(m.last_at, s.last_at),
    last_job = coalesce(m.last_job, s.last_job),
    broken = m.broken
FROM json_to_recordset(%(schedules)s::json) AS m (
    key text, next_at timestamptz, buffered_at timestamptz, last_at timestamptz, last_job bigint, broken text
)
WHERE s.key = m.key
    AND s.key = ANY (ARRAY(
        SELECT k.key FROM json_to_recordset(%(schedules)s::json) AS k (key text)
    ))
