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


def upgrade() -> None:
    for part in (WATCHED, REACTIONS, HTTP, WINDOWS, TRACES):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
