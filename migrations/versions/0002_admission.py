"""Admission: what limits a job, and the meters that it is admitted by"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# All nullable and without a default: adding them rewrites nothing, and a plain job pays nothing for them.
# text_pattern_ops: prefixes of parked_on are a range whatever the collation of the database.
LIMITS = """
ALTER TABLE queuety.jobs ADD COLUMN limits jsonb, ADD COLUMN metered boolean;
ALTER TABLE queuety.finished_jobs ADD COLUMN limits jsonb;
ALTER TABLE queuety.buried_jobs ADD COLUMN limits jsonb;
COMMENT ON COLUMN queuety.jobs.limits IS
    'What the job must have room for: {"group", "concurrency", "cost", "rate_key", "rate_count", "rate_s"}';
COMMENT ON COLUMN queuety.jobs.metered IS 'True for a run that counts against the cost budget of its queue';

DROP INDEX queuety.jobs_parked;
CREATE INDEX jobs_parked ON queuety.jobs (parked_on text_pattern_ops, queue, priority, available_at, id)
    WHERE parked_on IS NOT NULL;
CREATE INDEX jobs_limited ON queuety.jobs (lease)
    WHERE lease_until IS NOT NULL AND (limits IS NOT NULL OR metered);
CREATE INDEX jobs_group ON queuety.jobs ((limits ->> 'group'))
    WHERE limits ->> 'group' IS NOT NULL AND parked_on IS NULL;
CREATE INDEX jobs_rate ON queuety.jobs ((limits ->> 'rate_key'))
    WHERE limits ->> 'rate_key' IS NOT NULL AND state = 'pending' AND parked_on IS NULL;
CREATE INDEX jobs_metered ON queuety.jobs (queue) WHERE metered AND lease_until IS NOT NULL;

CREATE TABLE queuety.meters (
    kind text NOT NULL,
    name text NOT NULL,
    concurrency integer,
    budget integer,
    rate_count integer,
    rate_s double precision,
    set_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT meters_pkey PRIMARY KEY (kind, name),
    CONSTRAINT meters_kind_check CHECK (kind IN ('group', 'queue', 'rate')),
    CONSTRAINT meters_concurrency_check CHECK (concurrency >= 0 AND (concurrency IS NULL OR kind = 'group')),
    CONSTRAINT meters_budget_check CHECK (budget >= 0 AND (budget IS NULL OR kind <> 'rate')),
    CONSTRAINT meters_rate_check CHECK (
        rate_count >= 0 AND rate_s > 0 AND (rate_count IS NULL) = (rate_s IS NULL)
        AND (rate_count IS NULL OR kind = 'rate')
    )
);
COMMENT ON TABLE queuety.meters IS 'Limits that were set in the database; each wins over what jobs and settings say';
COMMENT ON COLUMN queuety.meters.concurrency IS 'Runs of a group at a time; null: as the jobs say';
COMMENT ON COLUMN queuety.meters.budget IS
    'Cost units of a group or queue that may run at a time; null: as the settings say';

CREATE TABLE queuety.starts (
    key text NOT NULL,
    lease bigint NOT NULL,
    begun_by timestamptz NOT NULL,
    starts integer NOT NULL,
    CONSTRAINT starts_pkey PRIMARY KEY (key, lease)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX starts_window ON queuety.starts (key, begun_by);
COMMENT ON TABLE queuety.starts IS 'Starts of jobs with a rate, one row per claim, for as long as their window lasts';
COMMENT ON COLUMN queuety.starts.begun_by IS 'The latest moment at which one of these starts may have happened';
"""

# Admission is decided where the rows are, in one statement of the claim's pipeline: while the meters are locked
# nothing waits for a client, so a worker that freezes cannot hold up a key. What a run uses is derived from the rows
# that are processing, by a statement after the lock and so with a snapshot of its own. A worker runs one job at a
# time, so all that one lease holds of a group takes one place, and of a budget the cost of its dearest job.
ADMISSION = r"""
CREATE FUNCTION queuety.lock_meters(keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    -- A lock for each key, of which some share one; in one order, so that nobody waits in a circle.
    PERFORM pg_advisory_xact_lock(7100002, bucket)
    FROM (SELECT DISTINCT hashtext(key) & 511 AS bucket FROM unnest(keys) AS key ORDER BY 1) AS buckets;
END
$body$;
COMMENT ON FUNCTION queuety.lock_meters(text[]) IS 'Lock the meters of keys until the end of the transaction';

CREATE FUNCTION queuety.group_use(name text, besides bigint, OUT places integer, OUT cost bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    SELECT count(*)::integer, coalesce(sum(held.cost), 0)::bigint INTO places, cost
    FROM (
        SELECT max(coalesce((j.limits ->> 'cost')::integer, 1)) AS cost
        FROM queuety.jobs AS j
        WHERE j.limits ->> 'group' = group_use.name AND j.limits ->> 'group' IS NOT NULL AND j.parked_on IS NULL
            AND j.lease_until IS NOT NULL AND j.lease <> group_use.besides
        GROUP BY j.lease
    ) AS held;
END
$body$;
COMMENT ON FUNCTION queuety.group_use(text, bigint) IS 'What runs of a group, apart from one lease';

CREATE FUNCTION queuety.queue_use(name text, besides bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    RETURN (
        SELECT coalesce(sum(held.cost), 0)
        FROM (
            SELECT max(coalesce((j.limits ->> 'cost')::integer, 1)) AS cost
            FROM queuety.jobs AS j
            WHERE j.queue = queue_use.name AND j.metered AND j.lease_until IS NOT NULL
                AND j.lease <> queue_use.besides
            GROUP BY j.lease
        ) AS held
    );
END
$body$;
COMMENT ON FUNCTION queuety.queue_use(text, bigint) IS
    'Cost units that run of a queue with a budget, apart from one lease';

CREATE FUNCTION queuety.rate_use(name text, window_s double precision) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    RETURN (
        SELECT coalesce(sum(s.starts), 0)
        FROM queuety.starts AS s
        WHERE s.key = rate_use.name AND s.begun_by > clock_timestamp() - make_interval(secs => rate_use.window_s)
    );
END
$body$;
COMMENT ON FUNCTION queuety.rate_use(text, double precision) IS
    'Starts under a rate that are, or may be, within its window';

CREATE FUNCTION queuety.admit(lanes text[], queue_budgets jsonb, group_budgets jsonb, guard_s double precision)
RETURNS TABLE (refused bigint, waits_for text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _lease bigint := nullif(current_setting('queuety.lease', true), '');
    _job record;
    _keys text[];
    _full text[] := '{}';      -- keys that have refused a job: those behind it do not pass it
    _rates text[] := '{}';     -- rate keys met, with what is left of each
    _left bigint[] := '{}';
    _place integer;
    _key text;
    _refused bigint[] := '{}';
    _waits text[] := '{}';
    _early text[] := '{}';     -- keys of jobs that came before their turn
    _awaited text[];           -- keys, each with a queue of ours, that others of that queue wait for already
BEGIN
    SELECT array_agg(DISTINCT k.key) INTO _keys
    FROM queuety.jobs AS j
    CROSS JOIN LATERAL (VALUES
        ('group:' || (j.limits ->> 'group')), ('rate:' || (j.limits ->> 'rate_key')),
        (CASE WHEN j.metered THEN 'queue:' || j.queue END)
    ) AS k (key)
    WHERE j.lease = _lease AND j.lease_until IS NOT NULL AND (j.limits IS NOT NULL OR j.metered)
        AND k.key IS NOT NULL;
    IF _keys IS NULL THEN
        RETURN;
    END IF;
    PERFORM queuety.lock_meters(_keys);
    SELECT array_agg(k.key || ' ' || q.queue) INTO _awaited
    FROM unnest(_keys) AS k (key)
    CROSS JOIN (
        SELECT DISTINCT j.queue FROM queuety.jobs AS j
        WHERE j.lease = _lease AND j.lease_until IS NOT NULL AND (j.limits IS NOT NULL OR j.metered)
    ) AS q
    CROSS JOIN LATERAL (
        SELECT p.id FROM queuety.jobs AS p WHERE p.parked_on = k.key AND p.queue = q.queue
        ORDER BY p.priority, p.available_at, p.id LIMIT 1
    ) AS first;
    FOR _job IN
        SELECT
            j.id, j.queue, j.priority, j.available_at, coalesce((j.limits ->> 'cost')::integer, 1) AS cost,
            j.limits ->> 'group' AS "group", of_group.places, of_group.cost AS group_cost,
            coalesce(g.concurrency, (j.limits ->> 'concurrency')::integer) AS concurrency,
            coalesce(g.budget, (group_budgets ->> (j.limits ->> 'group'))::integer) AS group_budget,
            of_queue.cost AS queue_cost,
            CASE WHEN j.metered THEN coalesce(q.budget, (queue_budgets ->> j.queue)::integer) END AS queue_budget,
            j.limits ->> 'rate_key' AS rate_key,
            coalesce(r.rate_count, (j.limits ->> 'rate_count')::integer) AS rate_count,
            coalesce(r.rate_s, (j.limits ->> 'rate_s')::double precision) AS rate_s
        FROM queuety.jobs AS j
        LEFT JOIN queuety.meters AS g ON g.kind = 'group' AND g.name = j.limits ->> 'group'
        LEFT JOIN queuety.meters AS q ON q.kind = 'queue' AND q.name = j.queue AND j.metered
        LEFT JOIN queuety.meters AS r ON r.kind = 'rate' AND r.name = j.limits ->> 'rate_key'
        LEFT JOIN (
            SELECT key, use.places, use.cost
            FROM unnest(_keys) AS key, queuety.group_use(substr(key, 7), _lease) AS use
            WHERE key LIKE 'group:%'
        ) AS of_group ON of_group.key = 'group:' || (j.limits ->> 'group')
        LEFT JOIN (
            SELECT key, queuety.queue_use(substr(key, 7), _lease) AS cost
            FROM unnest(_keys) AS key
            WHERE key LIKE 'queue:%'
        ) AS of_queue ON of_queue.key = 'queue:' || j.queue
        WHERE j.lease = _lease AND j.lease_until IS NOT NULL AND (j.limits IS NOT NULL OR j.metered)
        ORDER BY array_position(lanes, j.queue), j.priority, j.available_at, j.id
    LOOP
        _key := NULL;
        IF _job."group" IS NOT NULL THEN
            IF _job.cost > _job.group_budget AND _job.group_budget > 0 THEN
                _key := 'never:group:' || _job."group";
            ELSIF _job.places >= _job.concurrency OR _job.group_cost + _job.cost > _job.group_budget
                OR 'group:' || _job."group" = ANY (_full) THEN
                _key := 'group:' || _job."group";
            ELSIF 'group:' || _job."group" || ' ' || _job.queue = ANY (_awaited)
                AND queuety.before_its_turn('group:' || _job."group", _job.id) THEN
                _key := 'group:' || _job."group";
                _early := _early || _key;
            END IF;
        END IF;
        IF _key IS NULL AND _job.queue_budget IS NOT NULL THEN
            IF _job.cost > _job.queue_budget AND _job.queue_budget > 0 THEN
                _key := 'never:queue:' || _job.queue;
            ELSIF 'queue:' || _job.queue = ANY (_full)
                OR _job.queue_cost + _job.cost > _job.queue_budget THEN
                _key := 'queue:' || _job.queue;
            ELSIF 'queue:' || _job.queue || ' ' || _job.queue = ANY (_awaited)
                AND queuety.before_its_turn('queue:' || _job.queue, _job.id) THEN
                _key := 'queue:' || _job.queue;
                _early := _early || _key;
            END IF;
        END IF;
        IF _key IS NULL AND _job.rate_key IS NOT NULL AND _job.rate_count IS NOT NULL THEN
            _place := array_position(_rates, 'rate:' || _job.rate_key);
            IF _place IS NULL THEN
                _rates := _rates || ('rate:' || _job.rate_key);
                _left := _left || (_job.rate_count - queuety.rate_use('rate:' || _job.rate_key, _job.rate_s));
                _place := cardinality(_rates);
                -- Whoever is saying when a start has happened waits for our lock: we must not wait for him.
                DELETE FROM queuety.starts AS s
                WHERE s.key = _rates[_place] AND s.lease = ANY (ARRAY(
                    SELECT o.lease FROM queuety.starts AS o
                    WHERE o.key = _rates[_place]
                        AND o.begun_by <= clock_timestamp() - make_interval(secs => _job.rate_s)
                    FOR UPDATE SKIP LOCKED
                ));
            END IF;
            IF _left[_place] <= 0 OR _rates[_place] = ANY (_full) THEN
                _key := _rates[_place];
            ELSIF _rates[_place] || ' ' || _job.queue = ANY (_awaited)
                AND queuety.before_its_turn(_rates[_place], _job.id) THEN
                _key := _rates[_place];
                _early := _early || _key;
            ELSE
                _left[_place] := _left[_place] - 1;
                INSERT INTO queuety.starts AS s (key, lease, begun_by, starts)
                VALUES (_rates[_place], _lease, clock_timestamp() + make_interval(secs => guard_s), 1)
                ON CONFLICT ON CONSTRAINT starts_pkey DO UPDATE
                SET starts = s.starts + 1, begun_by = excluded.begun_by;
            END IF;
        END IF;
        IF _key IS NOT NULL THEN
            _refused := _refused || _job.id;
            _waits := _waits || _key;
            IF _key NOT LIKE 'never:%' AND _key <> ALL (_full) THEN
                _full := _full || _key;
            END IF;
        END IF;
    END LOOP;
    IF cardinality(_refused) = 0 THEN
        RETURN;
    END IF;
    UPDATE queuety.jobs AS j
    SET state = 'pending', attempts = j.attempts - 1, worker = NULL, claimed_at = NULL, lease_until = NULL,
        metered = NULL, parked_at = statement_timestamp(),
        parked_on = _waits[array_position(_refused, j.id)]
    WHERE j.id = ANY (_refused);
    PERFORM queuety.park_rest(_full);
    IF cardinality(_early) > 0 THEN
        PERFORM queuety.refill(_early, lanes, queue_budgets, group_budgets, 1, 1, NULL);
    END IF;
    RETURN QUERY SELECT * FROM unnest(_refused, _waits);
END
$body$;
COMMENT ON FUNCTION queuety.admit(text[], jsonb, jsonb, double precision) IS
    'Admit what this transaction has claimed, or park it free; returns what was refused, and the key it waits for';

CREATE FUNCTION queuety.before_its_turn(key text, job bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    -- Whether another job of the same queue waits for the key with a better place.
    RETURN EXISTS (
        SELECT
        FROM queuety.jobs AS own
        CROSS JOIN LATERAL (
            SELECT j.priority, j.available_at, j.id
            FROM queuety.jobs AS j
            WHERE j.parked_on = before_its_turn.key AND j.queue = own.queue
                AND j.available_at <= statement_timestamp()
            ORDER BY j.priority, j.available_at, j.id
            LIMIT 1
        ) AS first
        WHERE own.id = before_its_turn.job
            AND (first.priority, first.available_at, first.id) < (own.priority, own.available_at, own.id)
    );
END
$body$;
COMMENT ON FUNCTION queuety.before_its_turn(text, bigint) IS
    'Whether a job would pass one that waits for the same key';

CREATE FUNCTION queuety.park_rest(keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _key text;
    _ids bigint[];
BEGIN
    -- What else is due and waits for a full key goes with it, rather than one claim after the other.
    FOREACH _key IN ARRAY keys LOOP
        IF _key LIKE 'group:%' THEN
            SELECT array_agg(rest.id) INTO _ids FROM (
                SELECT j.id FROM queuety.jobs AS j
                WHERE j.limits ->> 'group' = substr(_key, 7) AND j.limits ->> 'group' IS NOT NULL
                    AND j.parked_on IS NULL AND j.state = 'pending' AND j.available_at <= statement_timestamp()
                LIMIT 500 FOR UPDATE SKIP LOCKED
            ) AS rest;
        ELSIF _key LIKE 'rate:%' THEN
            SELECT array_agg(rest.id) INTO _ids FROM (
                SELECT j.id FROM queuety.jobs AS j
                WHERE j.limits ->> 'rate_key' = substr(_key, 6) AND j.limits ->> 'rate_key' IS NOT NULL
                    AND j.parked_on IS NULL AND j.state = 'pending' AND j.available_at <= statement_timestamp()
                LIMIT 500 FOR UPDATE SKIP LOCKED
            ) AS rest;
        ELSE
            SELECT array_agg(rest.id) INTO _ids FROM (
                SELECT lane.id
                FROM generate_series(0, 3) AS level
                CROSS JOIN LATERAL (
                    SELECT j.id FROM queuety.jobs AS j
                    WHERE j.queue = substr(_key, 7) AND j.priority = level AND j.state = 'pending'
                        AND j.parked_on IS NULL AND j.available_at <= statement_timestamp()
                    ORDER BY j.available_at, j.id
                    LIMIT 500 FOR UPDATE SKIP LOCKED
                ) AS lane
                LIMIT 500
            ) AS rest;
        END IF;
        UPDATE queuety.jobs AS j SET parked_on = _key, parked_at = statement_timestamp() WHERE j.id = ANY (_ids);
    END LOOP;
END
$body$;
COMMENT ON FUNCTION queuety.park_rest(text[]) IS 'Park what is due and waits for keys that are full';

CREATE FUNCTION queuety.refill(
    keys text[], lanes text[], queue_budgets jsonb, group_budgets jsonb, places integer, each integer, after text,
    OUT unparked integer, OUT next_s double precision, OUT last text
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _open text[];
    _key text;
    _step integer := 0;
    _done integer;
    _next double precision;
BEGIN
    -- Only queues that are not paused: what is unparked is meant to run.
    SELECT array_agg(lane.queue ORDER BY lane.place) INTO _open
    FROM unnest(lanes) WITH ORDINALITY AS lane (queue, place)
    WHERE NOT EXISTS (
        SELECT FROM queuety.queues AS q
        WHERE q.name = lane.queue AND q.paused_at IS NOT NULL
            AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp())
    );
    unparked := 0;
    last := after;
    IF _open IS NULL THEN
        last := NULL;
        RETURN;
    END IF;
    LOOP
        _step := _step + 1;
        IF keys IS NOT NULL THEN
            EXIT WHEN _step > cardinality(keys);
            _key := keys[_step];
        ELSE
            IF _step > 500 THEN
                RETURN;  -- the next call goes on from here
            END IF;
            SELECT j.parked_on INTO _key FROM queuety.jobs AS j
            WHERE j.parked_on ~>~ coalesce(last, '') AND j.parked_on IS NOT NULL
            ORDER BY j.parked_on USING ~<~ LIMIT 1;
            last := _key;
            EXIT WHEN _key IS NULL;
        END IF;
        SELECT r.unparked, r.next_s INTO _done, _next
        FROM queuety.refill_key(
            _key, _open, queue_budgets, group_budgets, places, each, keys IS NOT NULL
        ) AS r;
        unparked := unparked + coalesce(_done, 0);
        next_s := least(next_s, _next);
    END LOOP;
END
$body$;
COMMENT ON FUNCTION queuety.refill(text[], text[], jsonb, jsonb, integer, integer, text) IS
    'Unpark, in order, what there is room for, of some keys or of all after one';

CREATE FUNCTION queuety.refill_key(
    key text, lanes text[], queue_budgets jsonb, group_budgets jsonb, places integer, each integer,
    telling boolean, OUT unparked integer, OUT next_s double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _kind text := split_part(key, ':', 1);
    _name text := substr(key, length(split_part(key, ':', 1)) + 2);
    _meter queuety.meters;
    _first jsonb;
    _used bigint := 0;
    _cost bigint := 0;
    _ready bigint := 0;
    _limit bigint;
    _budget bigint;
    _window double precision;
    _most bigint;
    _ids bigint[] := '{}';
    _one record;
BEGIN
    unparked := 0;
    IF _kind = 'never' THEN
        unparked := queuety.refill_never(key, _name, lanes, queue_budgets, group_budgets);
        RETURN;
    END IF;
    IF _kind NOT IN ('group', 'queue', 'rate') OR (_kind = 'queue' AND _name <> ALL (lanes)) THEN
        RETURN;
    END IF;
    SELECT coalesce(j.limits, '{}') INTO _first
    FROM unnest(lanes) WITH ORDINALITY AS lane (queue, place)
    CROSS JOIN LATERAL (
        SELECT p.limits FROM queuety.jobs AS p
        WHERE p.parked_on = key AND p.queue = lane.queue AND p.available_at <= statement_timestamp()
        ORDER BY p.priority, p.available_at, p.id
        LIMIT 1
    ) AS j
    LIMIT 1;
    IF NOT FOUND THEN
        -- Perhaps it is for somebody else, whose queues these are not, to take the place that has become free.
        IF telling AND EXISTS (SELECT FROM queuety.jobs AS j WHERE j.parked_on = key)
            AND EXISTS (SELECT FROM queuety.sleepers) THEN
            PERFORM pg_notify('queuety', 'k:' || left(key, 1000));
        END IF;
        RETURN;
    END IF;
    SELECT m.* INTO _meter FROM queuety.meters AS m WHERE m.kind = _kind AND m.name = _name;
    IF _kind = 'group' THEN
        SELECT use.places, use.cost INTO _used, _cost FROM queuety.group_use(_name, 0) AS use;
        _limit := coalesce(_meter.concurrency, (_first ->> 'concurrency')::integer);
        _budget := coalesce(_meter.budget, (group_budgets ->> _name)::integer);
        -- What is unparked already and will be claimed soon: by us, since it is in our queues.
        SELECT count(*), coalesce(sum(r.cost), 0) INTO _ready, _window FROM (
            SELECT coalesce((j.limits ->> 'cost')::integer, 1) AS cost FROM queuety.jobs AS j
            WHERE j.limits ->> 'group' = _name AND j.limits ->> 'group' IS NOT NULL AND j.parked_on IS NULL
                AND j.state = 'pending' AND j.queue = ANY (lanes) AND j.available_at <= statement_timestamp()
            LIMIT 1000
        ) AS r;
        _cost := _cost + _window;
        _most := least(coalesce(_limit - _used - _ready, places), places) * each;
    ELSIF _kind = 'queue' THEN
        _cost := queuety.queue_use(_name, 0);
        _budget := coalesce(_meter.budget, (queue_budgets ->> _name)::integer);
        _most := places * each;
    ELSE
        _limit := coalesce(_meter.rate_count, (_first ->> 'rate_count')::integer);
        _window := coalesce(_meter.rate_s, (_first ->> 'rate_s')::double precision);
        _used := queuety.rate_use(key, _window);
        SELECT count(*) INTO _ready FROM (
            SELECT FROM queuety.jobs AS j
            WHERE j.limits ->> 'rate_key' = _name AND j.limits ->> 'rate_key' IS NOT NULL AND j.parked_on IS NULL
                AND j.state = 'pending' AND j.queue = ANY (lanes) AND j.available_at <= statement_timestamp()
            LIMIT 1000
        ) AS r;
        _most := least(coalesce(_limit - _used - _ready, places * each), places * each);
        SELECT extract(EPOCH FROM min(s.begun_by) + make_interval(secs => _window) - clock_timestamp()) INTO next_s
        FROM queuety.starts AS s
        WHERE s.key = refill_key.key AND s.begun_by > clock_timestamp() - make_interval(secs => _window);
    END IF;
    IF _most <= 0 THEN
        RETURN;
    END IF;
    FOR _one IN
        SELECT j.id, j.cost
        FROM unnest(lanes) WITH ORDINALITY AS lane (queue, place)
        CROSS JOIN LATERAL (
            SELECT p.id, coalesce((p.limits ->> 'cost')::integer, 1) AS cost FROM queuety.jobs AS p
            WHERE p.parked_on = key AND p.queue = lane.queue AND p.available_at <= statement_timestamp()
            ORDER BY p.priority, p.available_at, p.id
            LIMIT _most FOR UPDATE SKIP LOCKED
        ) AS j
        LIMIT _most
    LOOP
        -- One that never fits is sorted out at its claim; a budget of 0 stops all.
        EXIT WHEN _cost + _one.cost > _budget AND (_one.cost <= _budget OR _budget = 0);
        _ids := _ids || _one.id;
        IF each = 1 THEN
            _cost := _cost + _one.cost;  -- else one worker runs them one after the other
        END IF;
    END LOOP;
    UPDATE queuety.jobs AS j SET parked_on = NULL, parked_at = NULL WHERE j.id = ANY (_ids);
    unparked := cardinality(_ids);
END
$body$;
COMMENT ON FUNCTION queuety.refill_key(text, text[], jsonb, jsonb, integer, integer, boolean) IS
    'Unpark, in order, what one key has room for; next_s: seconds until a rate has more';

CREATE FUNCTION queuety.refill_never(
    key text, inner_key text, lanes text[], queue_budgets jsonb, group_budgets jsonb
) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _kind text := split_part(inner_key, ':', 1);
    _name text := substr(inner_key, length(split_part(inner_key, ':', 1)) + 2);
    _budget bigint;
    _ids bigint[];
BEGIN
    -- What cost too much for another pool's budget, or for an earlier one, is looked at again where it fits.
    SELECT m.budget INTO _budget FROM queuety.meters AS m WHERE m.kind = _kind AND m.name = _name;
    _budget := coalesce(
        _budget, (CASE _kind WHEN 'queue' THEN queue_budgets ELSE group_budgets END ->> _name)::integer
    );
    SELECT array_agg(fits.id) INTO _ids
    FROM (
        SELECT j.id
        FROM unnest(lanes) AS lane (queue)
        CROSS JOIN LATERAL (
            SELECT p.id
            FROM queuety.jobs AS p
            WHERE p.parked_on = key AND p.queue = lane.queue
                AND (_budget IS NULL OR coalesce((p.limits ->> 'cost')::integer, 1) <= _budget)
            ORDER BY p.priority, p.available_at, p.id
            LIMIT 100 FOR UPDATE SKIP LOCKED
        ) AS j
    ) AS fits;
    UPDATE queuety.jobs AS j SET parked_on = NULL, parked_at = NULL WHERE j.id = ANY (_ids);
    RETURN coalesce(cardinality(_ids), 0);
END
$body$;
COMMENT ON FUNCTION queuety.refill_never(text, text, text[], jsonb, jsonb) IS
    'Unpark what was set apart for its cost and fits the budget as this caller knows it';

-- With the owner's rights: whoever may write a job need not read limits and starts.
CREATE FUNCTION queuety.waits_for(limits jsonb) RETURNS text
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, queuety, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $body$
DECLARE
    _group text := limits ->> 'group';
    _rate text := limits ->> 'rate_key';
    _most integer;
    _window double precision;
    _there bigint;
BEGIN
    -- Decides nothing: a job that is parked needlessly is unparked soon, one that is not is stopped at its claim.
    IF _group IS NOT NULL THEN
        IF EXISTS (SELECT FROM queuety.jobs AS j WHERE j.parked_on = 'group:' || _group) THEN
            RETURN 'group:' || _group;
        END IF;
        SELECT m.concurrency INTO _most FROM queuety.meters AS m WHERE m.kind = 'group' AND m.name = _group;
        _most := coalesce(_most, (limits ->> 'concurrency')::integer);
        SELECT count(*) INTO _there FROM (
            SELECT FROM queuety.jobs AS j
            WHERE j.limits ->> 'group' = _group AND j.limits ->> 'group' IS NOT NULL AND j.parked_on IS NULL
                AND j.available_at <= statement_timestamp()
            LIMIT _most
        ) AS few;
        IF _there >= _most THEN
            RETURN 'group:' || _group;
        END IF;
    END IF;
    IF _rate IS NOT NULL THEN
        IF EXISTS (SELECT FROM queuety.jobs AS j WHERE j.parked_on = 'rate:' || _rate) THEN
            RETURN 'rate:' || _rate;
        END IF;
        SELECT m.rate_count, m.rate_s INTO _most, _window FROM queuety.meters AS m
        WHERE m.kind = 'rate' AND m.name = _rate;
        _most := coalesce(_most, (limits ->> 'rate_count')::integer);
        _window := coalesce(_window, (limits ->> 'rate_s')::double precision);
        SELECT count(*) INTO _there FROM (
            SELECT FROM queuety.jobs AS j
            WHERE j.limits ->> 'rate_key' = _rate AND j.limits ->> 'rate_key' IS NOT NULL AND j.parked_on IS NULL
                AND j.state = 'pending' AND j.available_at <= statement_timestamp()
            LIMIT _most
        ) AS few;
        IF _there + (
            SELECT coalesce(sum(s.starts), 0) FROM queuety.starts AS s
            WHERE s.key = 'rate:' || _rate AND s.begun_by > statement_timestamp() - make_interval(secs => _window)
        ) >= _most THEN
            RETURN 'rate:' || _rate;
        END IF;
    END IF;
    RETURN NULL;
END
$body$;
COMMENT ON FUNCTION queuety.waits_for(jsonb) IS
    'The key that a new job with these limits had better be parked on at once, or null';
"""

PROFILES = """
CREATE TABLE queuety.profiles (
    handler text NOT NULL,
    minute timestamptz NOT NULL,
    runs bigint NOT NULL,
    seconds double precision NOT NULL,
    durations bigint[] NOT NULL,
    peak bigint,
    passing bigint,
    CONSTRAINT profiles_pkey PRIMARY KEY (handler, minute)
) WITH (fillfactor = 50);
COMMENT ON TABLE queuety.profiles IS 'What the runs of a handler have taken, by minute';
COMMENT ON COLUMN queuety.profiles.durations IS
    'Numbers of runs by duration: 64 classes, each longer by the square root of 2 than the one before';
COMMENT ON COLUMN queuety.profiles.peak IS 'The most memory that one run has taken, in bytes; null: not measured';
COMMENT ON COLUMN queuety.profiles.passing IS 'The most that one run has taken and given back at its end, in bytes';
ALTER TABLE queuety.workers ADD COLUMN memory jsonb;
COMMENT ON COLUMN queuety.workers.memory IS 'A keeper only: what its pool has, and what a worker of it may take';
"""

# A key is held by one row of unique_keys; whether its job still counts is looked up and never written down, so
# that no end of a job, by whatever road, can leave a key taken, and the claim and the settlements do nothing for it.
UNIQUE = r"""
CREATE TABLE queuety.unique_keys (
    job_id bigint NOT NULL,
    lapses_at timestamptz,
    key text NOT NULL,
    until text NOT NULL,
    CONSTRAINT unique_keys_pkey PRIMARY KEY (key),
    CONSTRAINT unique_keys_until_check CHECK (until IN ('start', 'end', 'window')),
    CONSTRAINT unique_keys_lapses_at_check CHECK ((until = 'window') = (lapses_at IS NOT NULL))
);
COMMENT ON TABLE queuety.unique_keys IS
    'The last job that took each unique key; key_holders says which of them still hold theirs';
COMMENT ON COLUMN queuety.unique_keys.until IS
    'start: held while the job is pending; end: while it is pending or processing; window: until lapses_at';

ALTER TABLE queuety.jobs ADD COLUMN unique_until text;
ALTER TABLE queuety.finished_jobs ADD COLUMN unique_until text;
ALTER TABLE queuety.buried_jobs ADD COLUMN unique_until text;
COMMENT ON COLUMN queuety.jobs.unique_key IS 'The key that the job was written under; key_holders says who holds it';
COMMENT ON COLUMN queuety.jobs.unique_until IS 'What frees the key: start, end or window';

-- Subqueries rather than a join: there is no other plan for them than to look up each job by its id.
CREATE VIEW queuety.key_holders AS
SELECT
    u.key, u.job_id, u.until, u.lapses_at,
    CASE u.until
        WHEN 'window' THEN u.lapses_at > clock_timestamp()
        WHEN 'start' THEN coalesce((SELECT j.state FROM queuety.jobs AS j WHERE j.id = u.job_id) = 'pending', false)
        ELSE (SELECT j.id FROM queuety.jobs AS j WHERE j.id = u.job_id) IS NOT NULL
    END AS held
FROM queuety.unique_keys AS u;
COMMENT ON VIEW queuety.key_holders IS 'The last job that took each unique key, and whether it still holds it';

UPDATE queuety.jobs SET unique_until = 'end' WHERE unique_key IS NOT NULL;
INSERT INTO queuety.unique_keys (key, job_id, until)
SELECT unique_key, id, unique_until FROM queuety.jobs WHERE unique_key IS NOT NULL;
DROP INDEX queuety.jobs_unique;

-- With the owner's rights, after a look at the caller's: whoever may write a job may take a key for it.
CREATE FUNCTION queuety.take_keys(
    keys text[], jobs bigint[], untils text[], seconds double precision[], locking boolean
) RETURNS TABLE (key text, holder bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, queuety, pg_temp
-- Only by the indexes, whatever the statistics say.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $body$
#variable_conflict use_column
DECLARE
    _keys text[] := keys;
    _found text[];
    _holders bigint[];
    _waiting bigint[];
    _snapshot_stays boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
    IF NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none')::name, session_user),
                               'queuety.jobs', 'INSERT') THEN
        RAISE EXCEPTION 'permission denied: a unique key needs INSERT on jobs'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT locking THEN
        -- What is plainly held is not locked: nobody else has to wait for the end of this transaction. But a job
        -- that is held until it starts is kept from starting before, so that its run sees what is written here.
        _waiting := queuety.keep_waiting(_keys);
        SELECT array_agg(h.key), array_agg(h.job_id) INTO _found, _holders FROM queuety.key_holders AS h
        WHERE h.key = ANY (_keys) AND h.held AND (h.until <> 'start' OR h.job_id = ANY (_waiting));
        IF _found IS NOT NULL THEN
            IF _snapshot_stays THEN
                PERFORM queuety.refuse_changed(_found);
            END IF;
            RETURN QUERY SELECT k, j FROM unnest(_found, _holders) AS held (k, j);
            _keys := ARRAY(SELECT k FROM unnest(_keys) AS k EXCEPT SELECT k FROM unnest(_found) AS k);
        END IF;
    END IF;
    -- In one order, so that two who take several never wait for each other. Whoever has one of them and has not
    -- committed is waited for; a row that is there is locked, and left as it is.
    WITH fresh AS (
        INSERT INTO queuety.unique_keys AS u (key, job_id, until, lapses_at)
        SELECT DISTINCT ON (w.key COLLATE "C")
            w.key, w.job, w.until, statement_timestamp() + make_interval(secs => w.seconds)
        FROM unnest(keys, jobs, untils, seconds) AS w (key, job, until, seconds)
        WHERE w.key = ANY (_keys)
        ORDER BY w.key COLLATE "C", w.job
        ON CONFLICT (key) DO UPDATE SET job_id = u.job_id WHERE false
        RETURNING u.key
    )
    SELECT array_agg(fresh.key) INTO _found FROM fresh;
    IF _found IS NOT NULL THEN
        -- A row that was deleted since the snapshot does not stand in the way, but would still be seen beside ours.
        IF _snapshot_stays AND EXISTS (
            SELECT FROM queuety.unique_keys AS u WHERE u.key = ANY (_found) AND u.job_id <> ALL (jobs)
        ) THEN
            PERFORM queuety.raise_changed();
        END IF;
        RETURN QUERY SELECT u.key, u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (_found);
        _keys := ARRAY(SELECT k FROM unnest(_keys) AS k EXCEPT SELECT k FROM unnest(_found) AS k);
    END IF;
    IF _keys = '{}' THEN
        RETURN;
    END IF;
    -- Look after locking: one statement sees one snapshot. Also what is the job's own already is written anew, or
    -- another transaction's older snapshot would still take it for free.
    _waiting := queuety.keep_waiting(_keys);
    UPDATE queuety.unique_keys AS u
    SET job_id = w.job, until = w.until,
        lapses_at = statement_timestamp() + make_interval(secs => w.seconds)
    FROM (
        SELECT DISTINCT ON (w.key COLLATE "C") w.key, w.job, w.until, w.seconds
        FROM unnest(keys, jobs, untils, seconds) AS w (key, job, until, seconds)
        WHERE w.key = ANY (_keys)
        ORDER BY w.key COLLATE "C", w.job
    ) AS w
    WHERE u.key = w.key
        AND NOT (
            SELECT h.held AND (h.until <> 'start' OR h.job_id = ANY (_waiting))
            FROM queuety.key_holders AS h
            WHERE h.key = u.key
        );
    IF _snapshot_stays THEN
        PERFORM queuety.refuse_changed(ARRAY(
            SELECT u.key FROM queuety.unique_keys AS u WHERE u.key = ANY (_keys) AND u.job_id <> ALL (jobs)
        ));
    END IF;
    RETURN QUERY SELECT u.key, u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (_keys);
END
$body$;
COMMENT ON FUNCTION queuety.take_keys(text[], bigint[], text[], double precision[], boolean) IS
    'Take unique keys for jobs about to be written in this transaction; returns who holds each, old or new';

CREATE FUNCTION queuety.refuse_changed(keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _job bigint;
    _gone boolean;
BEGIN
    -- An insert looks at what is there now, and goes through only if the row is gone. One that is in its way is neither
    -- written nor locked, which would hold up the job's run. If that is another version than the snapshot shows, it is
    -- the database's own serialization failure.
    INSERT INTO queuety.unique_keys (key, job_id, until)
    SELECT key, 0, 'end' FROM unnest(keys) AS key ORDER BY key COLLATE "C"
    ON CONFLICT ON CONSTRAINT unique_keys_pkey DO NOTHING;
    IF FOUND THEN
        PERFORM queuety.raise_changed();
    END IF;
    FOR _job IN
        SELECT u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (keys) AND u.until = 'end' ORDER BY u.job_id
    LOOP
        BEGIN
            INSERT INTO queuety.jobs (id, handler) VALUES (_job, '') ON CONFLICT ON CONSTRAINT jobs_pkey DO NOTHING;
            _gone := FOUND;
        EXCEPTION WHEN serialization_failure THEN
            _gone := false;  -- it is there in another version, and holds the key: begun, or its lease renewed
        END;
        IF _gone THEN
            PERFORM queuety.raise_changed();
        END IF;
    END LOOP;
END
$body$;
COMMENT ON FUNCTION queuety.refuse_changed(text[]) IS
    'Fail if these keys have been freed since the snapshot of this transaction, which must be one that stays';

CREATE FUNCTION queuety.raise_changed() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
BEGIN
    RAISE EXCEPTION 'could not serialize access: what holds a unique key has changed since'
        USING ERRCODE = 'serialization_failure', HINT = 'Try the transaction again.';
END
$body$;
COMMENT ON FUNCTION queuety.raise_changed() IS 'Fail as the database does for a snapshot that is too old';

CREATE FUNCTION queuety.keep_waiting(keys text[]) RETURNS bigint[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
    -- A claim skips what is locked.
    WITH waiting AS (
        SELECT j.id
        FROM queuety.jobs AS j
        WHERE j.id = ANY (ARRAY(
                SELECT u.job_id FROM queuety.unique_keys AS u WHERE u.key = ANY (keys) AND u.until = 'start'
            ))
            AND j.state = 'pending'
        ORDER BY j.id
        FOR KEY SHARE
    )
    SELECT coalesce(array_agg(waiting.id), '{}') FROM waiting
$body$;
COMMENT ON FUNCTION queuety.keep_waiting(text[]) IS
    'Keep pending the jobs that hold these keys until they start, while this transaction lasts; returns them';
"""

ENQUEUE = r"""
CREATE FUNCTION queuety.enqueue_limits(handler text, job jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _limits jsonb := '{}';
    _rate jsonb := job -> 'rate_limit';
BEGIN
    IF job ? 'concurrency_group' THEN
        _limits := jsonb_build_object('group', queuety.enqueue_name('concurrency_group', job -> 'concurrency_group'));
    END IF;
    IF job ? 'concurrency_limit' THEN
        _limits := jsonb_build_object('group', handler) || _limits || jsonb_build_object(
            'concurrency', queuety.enqueue_whole('concurrency_limit', job -> 'concurrency_limit', 1, 1000000));
    END IF;
    IF job ? 'cost_units' THEN
        _limits := _limits || jsonb_build_object(
            'cost', queuety.enqueue_whole('cost_units', job -> 'cost_units', 0, 1000000));
    END IF;
    IF job ? 'rate_key' THEN
        _limits := _limits || jsonb_build_object('rate_key', queuety.enqueue_name('rate_key', job -> 'rate_key'));
    END IF;
    IF job ? 'rate_limit' THEN
        IF jsonb_typeof(_rate) <> 'array' OR jsonb_array_length(_rate) <> 2 OR jsonb_typeof(_rate -> 1) <> 'number'
            OR (_rate ->> 1)::numeric NOT BETWEEN 0.1 AND 86400 THEN
            RAISE EXCEPTION 'queuety.enqueue: rate_limit must be [starts, seconds from 0.1 to 86400], not %', _rate
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        _limits := jsonb_build_object('rate_key', handler) || _limits || jsonb_build_object(
            'rate_count', queuety.enqueue_whole('the starts of rate_limit', _rate -> 0, 1, 1000000),
            'rate_s', _rate -> 1);
    END IF;
    RETURN nullif(_limits, '{}');
END
$body$;
COMMENT ON FUNCTION queuety.enqueue_limits(text, jsonb) IS 'What limits a job, as jobs.limits keeps it, or an error';

CREATE OR REPLACE FUNCTION queuety.enqueue(job jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, queuety, pg_temp
AS $body$
DECLARE
    _job jsonb;
    _unknown text;
    _handler text;
    _queue text := 'default';
    _payload jsonb := '{}';
    _priority integer := 2;
    _max_attempts integer := 3;
    _due timestamptz;
    _tags text[];
    _unique_key text;
    _until text := 'end';
    _window double precision;
    _limits jsonb;
    _waits_for text;
    _id bigint;
    _holder bigint;
BEGIN
    IF jsonb_typeof(job) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'queuety.enqueue: the job must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'For example {"handler": "add", "payload": {"a": 1}}.';
    END IF;
    SELECT min(key) INTO _unknown FROM jsonb_object_keys(job) AS key
    WHERE key <> ALL (ARRAY['handler', 'payload', 'queue', 'priority', 'delay', 'at', 'max_attempts', 'tags',
                            'unique_key', 'unique_for', 'unique_until', 'on_duplicate', 'concurrency_group',
                            'concurrency_limit', 'cost_units', 'rate_limit', 'rate_key']);
    IF _unknown IS NOT NULL THEN
        RAISE EXCEPTION 'queuety.enqueue: unknown key "%"', _unknown
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Known: handler, payload, queue, priority, delay, at, max_attempts, tags,'
                         ' unique_key, unique_for, unique_until, on_duplicate, concurrency_group,'
                         ' concurrency_limit, cost_units, rate_limit, rate_key.';
    END IF;
    IF job ? 'payload' THEN
        _payload := job -> 'payload';
        IF jsonb_typeof(_payload) <> 'object' THEN
            RAISE EXCEPTION 'queuety.enqueue: payload must be a JSON object, not %', jsonb_typeof(_payload)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    -- From here on a null means: not given.
    SELECT coalesce(jsonb_object_agg(key, value), '{}') INTO _job FROM jsonb_each(job)
    WHERE jsonb_typeof(value) <> 'null' AND key <> 'payload';
    _handler := queuety.enqueue_name('handler', _job -> 'handler');
    IF _job ? 'queue' THEN
        _queue := queuety.enqueue_name('queue', _job -> 'queue');
    END IF;
    IF jsonb_typeof(_job -> 'priority') = 'string' THEN
        _priority := array_position(ARRAY['urgent', 'high', 'normal', 'low'], _job ->> 'priority') - 1;
        IF _priority IS NULL THEN
            RAISE EXCEPTION 'queuety.enqueue: priority must be urgent, high, normal, low or 0 to 3, not %',
                _job -> 'priority' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    ELSIF _job ? 'priority' THEN
        _priority := queuety.enqueue_whole('priority', _job -> 'priority', 0, 3);
    END IF;
    IF _job ? 'max_attempts' THEN
        _max_attempts := queuety.enqueue_whole('max_attempts', _job -> 'max_attempts', 1, 1000);
    END IF;
    _due := queuety.enqueue_due(_job -> 'delay', _job -> 'at');
    IF _job ? 'tags' THEN
        IF jsonb_typeof(_job -> 'tags') <> 'array' THEN
            RAISE EXCEPTION 'queuety.enqueue: tags must be an array of text, not %',
                jsonb_typeof(_job -> 'tags') USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT array_agg(queuety.enqueue_name('tag', tag)) INTO _tags
        FROM jsonb_array_elements(_job -> 'tags') AS tag;
    END IF;
    IF _job ? 'unique_key' THEN
        _unique_key := queuety.enqueue_name('unique_key', _job -> 'unique_key');
    ELSIF _job ?| ARRAY['unique_for', 'unique_until', 'on_duplicate'] THEN
        RAISE EXCEPTION 'queuety.enqueue: unique_for, unique_until and on_duplicate need a unique_key'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF _job ? 'unique_for' THEN
        IF _job ? 'unique_until' THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_for and unique_until exclude each other'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF jsonb_typeof(_job -> 'unique_for') <> 'number'
           OR (_job ->> 'unique_for')::numeric NOT BETWEEN 0.001 AND 3155760000 THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_for must be seconds from 0.001 to 3155760000, not %',
                _job -> 'unique_for' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        _until := 'window';
        _window := (_job ->> 'unique_for')::double precision;
    ELSIF _job ? 'unique_until' THEN
        _until := _job ->> 'unique_until';
        IF _until NOT IN ('start', 'end') THEN
            RAISE EXCEPTION 'queuety.enqueue: unique_until must be "start" or "end", not %',
                _job -> 'unique_until' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF _job ->> 'on_duplicate' NOT IN ('return', 'error', 'skip') THEN
        RAISE EXCEPTION 'queuety.enqueue: on_duplicate must be "return", "error" or "skip", not %',
            _job -> 'on_duplicate' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    _limits := queuety.enqueue_limits(_handler, _job);
    IF _due <= statement_timestamp() THEN
        _waits_for := queuety.waits_for(_limits);
    END IF;

    _id := nextval(pg_get_serial_sequence('queuety.jobs', 'id'));
    IF _unique_key IS NOT NULL THEN
        SELECT t.holder INTO _holder
        FROM queuety.take_keys(ARRAY[_unique_key], ARRAY[_id], ARRAY[_until], ARRAY[_window], false) AS t;
        IF _holder <> _id THEN
            IF _job ->> 'on_duplicate' = 'error' THEN
                RAISE EXCEPTION 'queuety.enqueue: job % has the unique key %', _holder, _job -> 'unique_key'
                    USING ERRCODE = 'unique_violation', HINT = 'Wait for it, or use "on_duplicate": "return".';
            END IF;
            RETURN CASE WHEN _job ->> 'on_duplicate' = 'skip' THEN NULL ELSE _holder END;
        END IF;
    END IF;
    INSERT INTO queuety.jobs
        (id, handler, queue, payload, priority, max_attempts, available_at, tags, unique_key, unique_until, limits,
         parked_on, parked_at)
    VALUES (_id, _handler, _queue, _payload::text::json, _priority, _max_attempts, _due, _tags, _unique_key,
            CASE WHEN _unique_key IS NOT NULL THEN _until END, _limits, _waits_for,
            CASE WHEN _waits_for IS NOT NULL THEN statement_timestamp() END);

    -- Only for sleepers: NOTIFY serialises the commits of all who send it.
    IF _due <= statement_timestamp() AND _waits_for IS NULL
        AND EXISTS (SELECT FROM queuety.sleepers WHERE queue = _queue) THEN
        PERFORM pg_notify('queuety', 'q:' || _queue);
    END IF;
    RETURN _id;
END
$body$;
"""


def upgrade() -> None:
    for part in (LIMITS, ADMISSION, PROFILES, UNIQUE, ENQUEUE):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
