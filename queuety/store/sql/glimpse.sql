-- Say how some jobs stand, for readers of their streams; readers.sql in the same snapshot has their journals.
-- ids, behind bigint[]: for each reader its job, and the last line of the journal that it has.
-- Returns for each reader its place from 1, the line that began the life it is in (0: the first), the last line up to
-- where it is that does not tell of a burial (0: none; a place may be made up), and the job, NULL if it is gone.
-- Locks: none.  Index: jobs_pkey, finished_jobs_pkey, buried_jobs_pkey, job_events_job.
SELECT
    reader.place,
    coalesce(
        (
            SELECT e.id
            FROM queuety.job_events AS e
            WHERE e.job_id = reader.id
                AND e.id <= reader.after
                AND e.type = 'requeued'
            ORDER BY e.id DESC
            LIMIT 1
        ),
        0
    ),
    coalesce(
        (
            SELECT e.id
            FROM queuety.job_events AS e
            WHERE e.job_id = reader.id
                AND e.id <= reader.after
                AND e.type <> 'buried'
            ORDER BY e.id DESC
            LIMIT 1
        ),
        0
    ),
    job.state::text, job.handler, job.queue, job.attempts, job.started_at, job.finished_at, job.result, job.error
FROM unnest(%(ids)s::bigint[], %(behind)s::bigint[]) WITH ORDINALITY AS reader (id, after, place)
LEFT JOIN LATERAL (
    SELECT
        j.state, j.handler, j.queue, j.attempts, j.claimed_at AS started_at, NULL::timestamptz AS finished_at,
        NULL::json AS result, j.error
    FROM queuety.jobs AS j
    WHERE j.id = reader.id
    UNION ALL
    SELECT f.state, f.handler, f.queue, f.attempts, f.started_at, f.finished_at, f.result, f.error
    FROM queuety.finished_jobs AS f
    WHERE f.id = reader.id
    UNION ALL
    SELECT 'buried', b.handler, b.queue, b.attempts, b.started_at, b.finished_at, NULL, b.error
    FROM queuety.buried_jobs AS b
    WHERE b.id = reader.id
) AS job ON true
