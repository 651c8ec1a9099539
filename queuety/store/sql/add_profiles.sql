-- Add what runs have taken to the current minute of their handlers.
-- handlers text[].  runs bigint[].  seconds float8[].  durations text[]: arrays of 64 numbers.  peaks bigint[].  passing bigint[].
-- Locks: the minute's rows, in the order of the handlers' names.
INSERT INTO queuety.profiles AS p (handler, minute, runs, seconds, durations, peak, passing)
SELECT
    t.handler, date_trunc('minute', statement_timestamp(), 'UTC'), t.runs, t.seconds, t.durations::bigint[], t.peak,
    t.passing
FROM unnest(
    %(handlers)s::text[], %(runs)s::bigint[], %(seconds)s::float8[], %(durations)s::text[], %(peaks)s::bigint[],
    %(passing)s::bigint[]
) AS t (handler, runs, seconds, durations, peak, passing)
ORDER BY t.handler
ON CONFLICT (handler, minute) DO UPDATE
SET runs = p.runs + excluded.runs,
    seconds = p.seconds + excluded.seconds,
    durations = (
        SELECT array_agg(coalesce(pair.before, 0) + coalesce(pair.more, 0) ORDER BY pair.place)
        FROM unnest(p.durations, excluded.durations) WITH ORDINALITY AS pair (before, more, place)
    ),
    peak = greatest(p.peak, excluded.peak),
    passing = greatest(p.passing, excluded.passing)
