-- List the limited keys that are set or in use, with what runs and what waits; a reader's statement.
-- kind, name text (NULL: all).  size int.  Locks: none.  Reads all live jobs once.
WITH live AS MATERIALIZED (
    SELECT k.kind, k.name, j.queue, j.lease, j.parked_on, j.parked_at, j.limits, j.lease_until IS NOT NULL AS runs
    FROM queuety.jobs AS j
    CROSS JOIN LATERAL (
        VALUES
            ('group', j.limits ->> 'group'),
            ('rate', j.limits ->> 'rate_key'),
            (
                'queue',
                CASE
                    WHEN (j.metered AND j.lease_until IS NOT NULL)
                        OR j.parked_on IN ('queue:' || j.queue, 'never:queue:' || j.queue) THEN j.queue
                END
            )
    ) AS k (kind, name)
    WHERE k.name IS NOT NULL
        AND (%(kind)s::text IS NULL OR k.kind = %(kind)s::text)
        AND (%(name)s::text IS NULL OR k.name = %(name)s::text)
),
used AS (
    SELECT
        live.kind, live.name,
        array_agg(DISTINCT live.queue) AS queues,
        max((live.limits ->> 'concurrency')::integer) FILTER (WHERE live.kind = 'group') AS concurrency,
        max((live.limits ->> 'rate_count')::integer) FILTER (WHERE live.kind = 'rate') AS rate_count,
        max((live.limits ->> 'rate_s')::float8) FILTER (WHERE live.kind = 'rate') AS rate_s,
        count(DISTINCT live.lease) FILTER (WHERE live.runs) AS running,
        count(*) FILTER (WHERE live.parked_on = live.kind || ':' || live.name) AS parked,
        min(live.parked_at) FILTER (WHERE live.parked_on = live.kind || ':' || live.name) AS parked_at,
        count(*) FILTER (WHERE live.parked_on = 'never:' || live.kind || ':' || live.name) AS never
    FROM live
    GROUP BY live.kind, live.name
),
stored AS (
    SELECT m.kind, m.name, m.concurrency, m.budget, m.rate_count, m.rate_s
    FROM queuety.meters AS m
    WHERE (%(kind)s::text IS NULL OR m.kind = %(kind)s::text)
        AND (%(name)s::text IS NULL OR m.name = %(name)s::text)
),
keys AS (
    SELECT
        kind, name, coalesce(used.queues, '{}') AS queues, coalesce(stored.concurrency, used.concurrency) AS concurrency,
        stored.budget, coalesce(stored.rate_count, used.rate_count) AS rate_count,
        coalesce(stored.rate_s, used.rate_s) AS rate_s, stored.kind IS NOT NULL AS is_stored,
        coalesce(used.running, 0) AS running, coalesce(used.parked, 0) AS parked, used.parked_at,
        coalesce(used.never, 0) AS never
    FROM used
    FULL JOIN stored USING (kind, name)
    ORDER BY coalesce(used.parked, 0) DESC, coalesce(used.running, 0) DESC, kind, name COLLATE "C"
    LIMIT %(size)s
)
SELECT
    keys.kind || ':' || keys.name, keys.kind, keys.name, keys.queues, keys.concurrency, keys.budget, keys.rate_count,
    keys.rate_s, keys.is_stored, keys.running::integer,
    CASE keys.kind
        WHEN 'group' THEN (SELECT g.cost FROM queuety.group_use(keys.name, 0) AS g)
        WHEN 'queue' THEN queuety.queue_use(keys.name, 0)
        ELSE 0
    END::integer,
    CASE WHEN keys.kind = 'rate' AND keys.rate_s IS NOT NULL THEN queuety.rate_use('rate:' || keys.name, keys.rate_s) ELSE 0 END::integer,
    keys.parked::integer, extract(EPOCH FROM statement_timestamp() - keys.parked_at)::float8, keys.never::integer
FROM keys
