"""Run Queuety's migrations: one transaction, one at a time.

Called by queuety.store.migrations, which hands over an open connection in `config.attributes["connection"]`:
no URL is ever written into alembic's configuration, whose parser would trip over a percent sign.
"""

from __future__ import annotations

from alembic import context

# The advisory lock that serialises migrations. Never change it: an older version must wait for us, too.
LOCK = 7_305_802_401


def online() -> None:
    """Upgrade over the connection that was handed in; the caller owns its transaction."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        transaction_per_migration=False,
        on_version_apply=context.config.attributes.get("on_version_apply"),
        version_table="schema_version",
        version_table_schema="queuety",
    )
    with context.begin_transaction():
        # A role's own time limits must not cut off whoever waits for his turn.
        context.execute("SET LOCAL statement_timeout = 0")
        context.execute("SET LOCAL lock_timeout = 0")
        # Lock before looking: whoever waited here finds the version that the first one wrote.
        context.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        # A table in use: give up rather than let every worker queue behind us.
        context.execute("SET LOCAL lock_timeout = '10s'")
        # Not IF NOT EXISTS: that asks for the right to create schemas even if the schema is there.
        found = connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = 'queuety'").scalar()
        if not found:
            context.execute("CREATE SCHEMA queuety")
        context.run_migrations()


def offline() -> None:
    """Print the statements instead of running them."""
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        output_buffer=context.config.output_buffer,
        transaction_per_migration=False,
        version_table="schema_version",
        version_table_schema="queuety",
    )
    with context.begin_transaction():
        context.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        context.execute("CREATE SCHEMA IF NOT EXISTS queuety")
        context.run_migrations()


if context.is_offline_mode():
    offline()
else:
    online()
