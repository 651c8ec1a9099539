-- Claim up to `size` due jobs, walking the lanes in the order given, under one new lease.
-- queues text[], priorities smallint[]: the lanes.  lines int[]: the line, from 1, that each lane is in.
-- caps int[]: how many jobs each line gives at most; the lines are walked in this order.
-- after_at float8[] (seconds since 1970, -Infinity: the front), after_id bigint[]: each lane's cursor.
-- skip text[]: handlers that this claim leaves to others.
-- size int.  worker text: the claimer's name.  stale float8: seconds that the lease lasts.
-- limits jsonb: the limits of handlers, by name, for jobs that were written without (NULL: none has any).
-- budgeted text[]: queues with a cost budget by the settings; what the meters say comes on top.
-- Returns what a run needs; the rows come in any order (sort by lane, available_at, id).
-- Locks: the claimed rows; locked rows are skipped.  Index: jobs_claim, then jobs_pkey.
-- The lease is noted in the transaction, for admit.sql, which must follow: until then nothing of this may run.
-- id = ANY (…) rather than a join: the planner then has no other way into the table than the primary key.
WITH lanes AS MATERIALIZED (
    SELECT lane.queue, lane.priority, to_timestamp(lane.after_at) AS after_at, lane.after_id, lane.line
    FROM unnest(
        %(queues)s::text[], %(priorities)s::smallint[], %(after_at)s::float8[], %(after_id)s::bigint[],
        %(lines)s::int[]
    ) AS lane (queue, priority, after_at, after_id, line)
    WHERE NOT coalesce(
        (
            SELECT q.paused_at IS NOT NULL AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp())
            FROM queuety.queues AS q
            WHERE q.name = lane.queue
        ),
        false
    )
),
metered AS MATERIALIZED (
    SELECT %(budgeted)s::text[] || ARRAY(
        SELECT m.name FROM queuety.meters AS m WHERE m.kind = 'queue' AND m.budget IS NOT NULL
    ) AS queues
),
picked AS MATERIALIZED (
    SELECT job.id
    FROM unnest(%(caps)s::int[]) WITH ORDINALITY AS line (cap, number)
    CROSS JOIN LATERAL (
        SELECT own.id
        FROM lanes
        CROSS JOIN LATERAL (
            SELECT j.id
            FROM queuety.jobs AS j
            WHERE j.state = 'pending'
                AND j.parked_on IS NULL
                AND j.queue = lanes.queue
                AND j.priority = lanes.priority
                AND (j.available_at, j.id) > (lanes.after_at, lanes.after_id)
                AND j.available_at <= statement_timestamp()
                AND j.handler <> ALL (%(skip)s::text[])
            ORDER BY j.available_at, j.id
            LIMIT %(size)s
            FOR UPDATE SKIP LOCKED
        ) AS own
        WHERE lanes.line = line.number
        LIMIT line.cap
    ) AS job
    LIMIT %(size)s
)
UPDATE queuety.jobs AS j
SET state = 'processing',
    attempts = j.attempts + 1,
    lease = (SELECT set_config('queuety.lease', nextval('queuety.leases')::text, true)::bigint),
    limits = coalesce(j.limits, %(limits)s::jsonb -> j.handler),
    metered = CASE WHEN j.queue = ANY ((SELECT metered.queues FROM metered)::text[]) THEN true END,
    worker = %(worker)s,
    claimed_at = statement_timestamp(),
    lease_until = statement_timestamp() + make_interval(secs => %(stale)s::float8)
WHERE j.id = ANY (ARRAY(SELECT picked.id FROM picked))
RETURNING
    j.id, j.lease, j.handler, j.payload::text, j.attempts, j.max_attempts, j.queue, j.priority,
    extract(EPOCH FROM j.available_at)::float8, extract(EPOCH FROM j.created_at)::float8, j.tags,
    j.backoff::text, extract(EPOCH FROM statement_timestamp() - j.parked_at)::float8,
    j.limits::text, j.metered
