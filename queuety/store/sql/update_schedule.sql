-- Give a schedule, whose row is locked, another content. A pause stays, and so does what it has run.
-- Parameters as for insert_schedule.sql.
-- Locks the row until the commit.  Indexes: schedules_pkey.
UPDATE queuety.schedules AS s
SET
    handler = %(handler)s,
    payload = %(payload)s::json,
    job = %(job)s::jsonb,
    cron = %(cron)s,
    every_s = %(every_s)s,
    timezone = %(timezone)s,
    starts_at = %(starts_at)s,
    ends_at = %(ends_at)s,
    jitter_s = %(jitter_s)s,
    overlap = %(overlap)s,
    missed = %(missed)s,
    missed_limit = %(missed_limit)s,
    declared_by = %(declared_by)s,
    anchor = %(anchor)s,
    next_at = %(next_at)s,
    buffered_at = CASE WHEN s.retired_at IS NULL AND %(overlap)s = 'buffer' THEN s.buffered_at END,
    retired_at = NULL,
    broken = NULL,
    changed_at = statement_timestamp()
WHERE s.key = %(key)s
