-- Find the handlers that jobs have been parked for longer than `grace` seconds.
-- grace float8.  Returns keys.  Locks: none.  Index: jobs_parked (by bytes, so the range is a prefix).
SELECT DISTINCT j.parked_on
FROM queuety.jobs AS j
WHERE j.parked_on ~>=~ 'handler:'
    AND j.parked_on ~<~ 'handler;'
    AND j.parked_at < statement_timestamp() - make_interval(secs => %(grace)s::float8)
LIMIT 100
