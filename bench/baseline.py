"""`python -m bench.baseline`: a process that has imported the application and psycopg, and no more."""

from __future__ import annotations

import sys

import psycopg

from bench.application import app
from bench.speech import wait_for_go

if __name__ == "__main__":
    with psycopg.connect(app.url):
        wait_for_go()
    sys.exit(0)
