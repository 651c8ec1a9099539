-- Add ticks to the journal of the schedules.
-- ticks text: JSON array of {"schedule", "at", "through", "ticks", "kind", "reason", "job_id"}.
-- A tick that is noted already stays as it is if nothing of it was run now; a second run of a tick violates
-- schedule_ticks_pkey, and takes its job with it.
-- Indexes: schedule_ticks_pkey.
INSERT INTO queuety.schedule_ticks (schedule, at, through, ticks, kind, reason, job_id)
SELECT t.schedule, t.at, t.through, t.ticks, t.kind, t.reason, t.job_id
FROM json_to_recordset(%(ticks)s::json) AS t (
    schedule text, at timestamptz, through timestamptz, ticks integer, kind text, reason text, job_id bigint
)
WHERE t.kind = 'run'
    OR (SELECT n.at FROM queuety.schedule_ticks AS n WHERE n.schedule = t.schedule AND n.at = t.at) IS NULL
