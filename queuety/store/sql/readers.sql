-- Read on in the journals of some jobs, for readers of their streams.
-- ids, behind bigint[]: for each reader its job, and the last line that it has.
-- size int: lines for each at most.  bytes bigint: of data; the line that goes beyond is the last.
-- Returns for each line the reader's place from 1, whether there may be more behind the last one, and the line; in
-- order of the place and the line.
-- Locks: none.  Index: job_events_job.
SELECT reader.place, page.lines = %(size)s::bigint OR page.cut, page.id, page.type, page.at, page.attempt, page.data
FROM unnest(%(ids)s::bigint[], %(behind)s::bigint[]) WITH ORDINALITY AS reader (id, after, place)
CROSS JOIN LATERAL (
    SELECT
        line.id, line.type, line.at, line.attempt, line.data, line.before,
        count(*) OVER () AS lines,
        max(line.before) OVER () >= %(bytes)s::bigint AS cut
    FROM (
        SELECT
            e.id, e.type, e.at, e.attempt, e.data,
            coalesce(
                sum(octet_length(e.data::text)) OVER (ORDER BY e.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
            ) AS before
        FROM (
            SELECT own.id, own.type, own.at, own.attempt, own.data
            FROM queuety.job_events AS own
            WHERE own.job_id = reader.id
                AND own.id > reader.after
            ORDER BY own.id
            LIMIT %(size)s::bigint
        ) AS e
    ) AS line
) AS page
WHERE page.before < %(bytes)s::bigint
ORDER BY reader.place, page.id
