"""Watching: what tells of jobs from outside, and who may ask"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

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


def upgrade() -> None:
    for part in (HTTP,):
        # A colon is a colon here, never a parameter.
        op.execute(sa.text(part.strip().removesuffix(";").replace(":", r"\:")))


def downgrade() -> None:
    raise NotImplementedError("Queuety's schema only moves forward; restore a backup to go back")
