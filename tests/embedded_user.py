"""A process that uses the embedded PostgreSQL: prints its URL, holds it until its input ends or Ctrl+C.

At Ctrl+C it works on for a moment over the connection that it has, as a draining worker does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from queuety import embedded


def main() -> None:
    with (
        embedded.start(Path(sys.argv[1])) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        try:
            print(server.url, flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            connection.execute("SELECT pg_sleep(0.2)")
            print("drained", flush=True)


if __name__ == "__main__":
    main()
