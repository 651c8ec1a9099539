-- Write a schedule, unless its key is taken.
-- key, handler, timezone, overlap, missed, declared_by, cron text.  payload, job text (JSON).  every_s, jitter_s float8.
-- starts_at, ends_at, anchor, next_at timestamptz.  missed_limit int.
-- Affects one row, or none.  Locks it until the commit.  Indexes: schedules_pkey.
INSERT INTO queuety.schedules (
    key, handler, payload, job, cron, every_s, timezone, starts_at, ends_at, jitter_s, overlap, missed, missed_limit,
    declared_by, anchor, next_at
)
VALUES (
    %(key)s, %(handler)s, %(payload)s::json, %(job)s::jsonb, %(cron)s, %(every_s)s, %(timezone)s, %(starts_at)s,
    %(ends_at)s, %(jitter_s)s, %(overlap)s, %(missed)s, %(missed_limit)s, %(declared_by)s, %(anchor)s, %(next_at)s
)
ON CONFLICT (key) DO NOTHING
