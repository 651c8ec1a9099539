-- Sum up what the runs of `handlers` have taken within the last `window` seconds.
-- handlers text[].  window float8.
-- Returns handler, runs, seconds, durations bigint[64], peak, passing.  Locks: none.  Index: profiles_pkey.
-- A minute counts until its end is out of the window.
SELECT
    p.handler, sum(p.runs)::bigint, sum(p.seconds),
    (
        SELECT array_agg(c.runs ORDER BY c.place)
        FROM (
            SELECT d.place, sum(d.runs)::bigint AS runs
            FROM queuety.profiles AS q
            CROSS JOIN LATERAL unnest(q.durations) WITH ORDINALITY AS d (runs, place)
            WHERE q.handler = p.handler
                AND q.minute > statement_timestamp() - make_interval(secs => %(window)s::float8 + 60)
            GROUP BY d.place
        ) AS c
    ),
    max(p.peak), max(p.passing)
FROM queuety.profiles AS p
WHERE p.handler = ANY (%(handlers)s::text[])
    AND p.minute > statement_timestamp() - make_interval(secs => %(window)s::float8 + 60)
GROUP BY p.handler
