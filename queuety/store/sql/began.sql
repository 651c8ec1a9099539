-- Say of the starts of `lease` under rates when they have happened, and which have not: then they count no longer
-- than they must.
-- lease bigint.  keys text[]: the rates.  none text[]: one entry for each start that did not happen.
-- ago float8: seconds since the last one that did; negative: not known yet.
-- Locks: the rows.  Index: starts_pkey.
UPDATE queuety.starts AS s
SET starts = s.starts - (SELECT count(*) FROM unnest(%(none)s::text[]) AS t (key) WHERE t.key = s.key),
    begun_by = least(s.begun_by, clock_timestamp() - make_interval(secs => %(ago)s::float8))
WHERE s.lease = %(lease)s
    AND s.key = ANY (%(keys)s::text[])
