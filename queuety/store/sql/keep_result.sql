-- Add the result of a run whose own transaction has completed its job.
-- id bigint.  result text (JSON).  Locks: the row.  Index: finished_jobs_pkey of each day.
UPDATE queuety.finished_jobs AS f
SET result = %(result)s::json
WHERE f.id = %(id)s
