"""Watching: what tells of jobs from outside, and who may ask"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Unlogged: a crash empties it, and whoever is listed writes itself in again. A listener that is gone lapses.
WATCHED = """
CREATE UNLOGGED TABLE queuety.watched (
    job_id bigint NOT NULL,
    until timestamptz NOT NULL,
    listener text NOT NULL,
    CONSTRAINT watched_pkey PRIMARY KEY (job_id, listener)
);
COMMENT ON TABLE queuety.watched IS 'Jobs that somebody watches, and the listener that is to be notified';
COMMENT ON COLUMN queuety.watched.until IS 'The listener renews it; a row whose time is over notifies nobody';
COMMENT ON COLUMN queuety.watched.listener IS 'The channel that it listens on';

CREATE VIEW queuety.audience AS
    SELECT 'watched'::text AS kind FROM queuety.watched;
COMMENT ON VIEW queuety.audience IS
    'A row for each reason to call queuety.ended or queuety.told; while it is empty, no statement calls them';
"""

# The statements that settle call `ended` once each, for all jobs of one end, after these have left queuety.jobs and
# while a row of `audience` is there: what is to happen at the end of a job, by every road, is added here.
REACTIONS = """
CREATE FUNCTION queuety.told(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(w.listener, w.job_id::text)
    FROM queuety.watched AS w
    WHERE w.job_id = ANY (told.ids)
        AND w.until > statement_timestamp();
END
$$;
COMMENT ON FUNCTION queuety.told(bigint[]) IS 'Notify those who watch these jobs that there is something to read';

CREATE FUNCTION queuety.ended(state queuety.job_state, ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queuety.told(ended.ids);
    IF EXISTS (SELECT FROM queuety.webhooks AS w WHERE w.paused_at IS NULL) THEN
        PERFORM queuety.announce(ended.state, ended.ids);
    END IF;
END
$$;
COMMENT ON FUNCTION queuety.ended(queuety.job_state, bigint[]) IS
    'What happens at the end of these jobs, completed, buried or cancelled, inside the transaction that ends them';
"""

# The HTTP API. A token itself is kept nowhere; a request that a caller gave a key is made once within a while.
HTTP = """
CREATE TABLE queuety.http_tokens (
    name text NOT NULL,
    role text NOT NULL,
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT http_tokens_pkey PRIMARY KEY (name),
    CONSTRAINT http_tokens_role_check CHECK (role IN ('viewer', 'operator', 'admin')),
    CONSTRAINT http_tokens_digest_check CHECK (length(digest) = 32)
);
COMMENT ON TABLE queuety.http_tokens IS 'Who may use the HTTP API, and how far';
COMMENT ON COLUMN queuety.http_tokens.digest IS 'SHA-256 of the token, which is kept nowhere';

CREATE TABLE queuety.http_requests (
    owner text NOT NULL,
    key text NOT NULL,
    digest bytea NOT NULL,
    job_id bigint,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT http_requests_pkey PRIMARY KEY (owner, key)
);
CREATE INDEX http_requests_created ON queuety.http_requests (created_at);
COMMENT ON TABLE queuety.http_requests IS 'Requests with an Idempotency-Key: the job that each of them wrote';
COMMENT ON COLUMN queuety.http_requests.owner IS 'The name of the token; empty: nobody was asked for one';
COMMENT ON COLUMN queuety.http_requests.digest IS 'SHA-256 of the request, so that another one under its key is told';
"""

# Rows come in the order of this column, so that a summary of a few pages finds a window; it costs a settlement
# nothing that can be measured. The newest pages are summarised by autovacuum, and read whole until then.
WINDOWS = """
CREATE INDEX finished_jobs_finished_at ON queuety.finished_jobs USING brin (finished_at)
    WITH (pages_per_range = 32, autosummarize = on);
"""

# A trace has no column of its own: most jobs have none, and what is claimed is read for each of them.
TRACES = """
COMMENT ON COLUMN queuety.jobs.backoff IS
    'The handler''s own back-off: {"kind", "initial", "max", "jitter"} or {"steps": [seconds]}; "trace": W3C context';
"""

# Who is told of ends from outside. A delivery is a job like any other, written in the transaction of the end that it
# tells: it exists if and only if that end was committed. It never tells of deliveries, or one would bring the next.
WEBHOOKS = """
CREATE TABLE queuety.webhooks (
    name text NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL,
    handlers text[] NOT NULL DEFAULT '{}',
    queues text[] NOT NULL DEFAULT '{}',
    tags text[] NOT NULL DEFAULT '{}',
    deliver_on text NOT NULL DEFAULT 'default',
    concurrency integer NOT NULL DEFAULT 2,
    max_attempts integer NOT NULL,
    backoff json NOT NULL,
    headers json NOT NULL,
    allow_private boolean NOT NULL DEFAULT false,
    secret text NOT NULL,
    old_secret text,
    old_secret_until timestamptz,
    paused_at timestamptz,
    pause_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT webhooks_pkey PRIMARY KEY (name),
    CONSTRAINT webhooks_events_check CHECK (
        cardinality(events) > 0 AND events <@ ARRAY['job.completed', 'job.failed', 'job.canceled']
    ),
    CONSTRAINT webhooks_concurrency_check CHECK (concurrency BETWEEN 1 AND 1000000),
    CONSTRAINT webhooks_max_attempts_check CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT webhooks_old_secret_check CHECK ((old_secret IS NULL) = (old_secret_until IS NULL))
);
COMMENT ON TABLE queuety.webhooks IS 'Receivers that are told of the ends of jobs';
COMMENT ON COLUMN queuety.webhooks.handlers IS 'Only jobs of these; so queues, and tags, of which a job must have one';
COMMENT ON COLUMN queuety.webhooks.deliver_on IS 'The queue of its deliveries';
COMMENT ON COLUMN queuety.webhooks.secret IS 'Signs what is sent; needed in the clear, so kept nowhere else';
COMMENT ON COLUMN queuety.webhooks.old_secret IS 'The one before the last rotation, which signs as well until then';

CREATE OR REPLACE VIEW queuety.audience AS
    SELECT 'watched'::text AS kind FROM queuety.watched
    UNION ALL
    SELECT 'webhooks'::text FROM queuety.webhooks AS w WHERE w.paused_at IS NULL;

CREATE FUNCTION queuety.announce(state queuety.job_state, ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _type constant text := CASE announce.state
        WHEN 'completed' THEN 'job.completed' WHEN 'buried' THEN 'job.failed' WHEN 'cancelled' THEN 'job.canceled'
    END;
    _queues text[];
BEGIN
    WITH hook AS MATERIALIZED (
        SELECT w.name, w.handlers, w.queues, w.tags, w.deliver_on, w.max_attempts, w.backoff, l.limits,
            queuety.waits_for(l.limits) AS waits
        FROM queuety.webhooks AS w
        CROSS JOIN LATERAL (
            SELECT jsonb_build_object('group', 'webhook:' || w.name, 'concurrency', w.concurrency) AS limits
        ) AS l
        WHERE w.paused_at IS NULL AND _type = ANY (w.events)
    ),
    job AS MATERIALIZED (
        SELECT f.id, f.handler, f.queue, f.tags, f.attempts, f.finished_at, f.result, f.error
        FROM queuety.finished_jobs AS f
        WHERE announce.state <> 'buried' AND f.id = ANY (announce.ids)
        UNION ALL
        SELECT b.id, b.handler, b.queue, b.tags, b.attempts, b.finished_at, NULL, b.error
        FROM queuety.buried_jobs AS b
        WHERE announce.state = 'buried' AND b.id = ANY (announce.ids)
    ),
    -- One id for all who are told of an end: who is told of it twice can tell.
    said AS MATERIALIZED (
        SELECT job.id, 'msg_' || replace(gen_random_uuid()::text, '-', '') AS message_id,
            json_build_object(
                'type', _type,
                'timestamp', to_char(job.finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                'data', json_build_object(
                    'job_id', job.id::text, 'handler', job.handler, 'queue', job.queue,
                    'tags', coalesce(job.tags, '{}'),
                    'payload', CASE announce.state
                        WHEN 'buried' THEN json_build_object(
                            'error', json_build_object(
                                'type', coalesce(job.error ->> 'type', 'Unknown'),
                                'message', coalesce(job.error ->> 'message', '')
                            ),
                            'attempts', job.attempts
                        )
                        WHEN 'cancelled' THEN json_build_object('attempts', job.attempts)
                        ELSE CASE
                            WHEN octet_length(job.result::text) > 65536
                                THEN json_build_object('result', NULL, 'attempts', job.attempts, 'resultOmitted', true)
                            ELSE json_build_object('result', job.result, 'attempts', job.attempts)
                        END
                    END
                )
            ) AS message
        FROM job
        WHERE job.handler <> 'queuety.webhook'
    ),
    delivery AS (
        INSERT INTO queuety.jobs (
            handler, payload, queue, priority, max_attempts, available_at, tags, backoff, limits, parked_on, parked_at
        )
        SELECT
            'queuety.webhook',
            json_build_object('webhook', hook.name, 'message_id', said.message_id, 'message', said.message),
            hook.deliver_on, 3, hook.max_attempts, statement_timestamp(), ARRAY['webhook:' || hook.name],
            hook.backoff, hook.limits, hook.waits,
            CASE WHEN hook.waits IS NOT NULL THEN statement_timestamp() END
        FROM said
        INNER JOIN job ON job.id = said.id
        INNER JOIN hook
            ON (hook.handlers = '{}' OR job.handler = ANY (hook.handlers))
            AND (hook.queues = '{}' OR job.queue = ANY (hook.queues))
            AND (hook.tags = '{}' OR job.tags && hook.tags)
        ORDER BY said.id, hook.name
        RETURNING queue, parked_on
    )
    SELECT array_agg(DISTINCT delivery.queue) INTO _queues FROM delivery WHERE delivery.parked_on IS NULL;
    PERFORM pg_notify('queuety', 'q:' || s.queue)
    FROM (SELECT DISTINCT one.queue FROM queuety.sleepers AS one WHERE one.queue = ANY (_queues)) AS s;
END
$$;
COMMENT ON FUNCTION queuety.announce(queuety.job_state, bigint[]) IS
    'Write the deliveries that tell the webhooks of these ends, and wake who sleeps on their queues';
"""


def upgrade() -> None:
    for part in (WATCHED, REACTIONS, HTTP, WINDOWS, TRACES, WEBHOOKS):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
