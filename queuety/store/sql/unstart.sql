-- Take back starts of `lease` under rates, of jobs that were given back instead.
-- lease bigint.  keys text[]: one entry a start.  Locks: the rows.  Index: starts_pkey.
WITH taken AS MATERIALIZED (
    SELECT t.key, count(*) AS starts FROM unnest(%(keys)s::text[]) AS t (key) GROUP BY t.key
)
UPDATE queuety.starts AS s
SET starts = s.starts - (SELECT taken.starts FROM taken WHERE taken.key = s.key)
WHERE s.lease = %(lease)s
    AND s.key = ANY (ARRAY(SELECT taken.key FROM taken))
