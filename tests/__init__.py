"""The tests. They run against a real PostgreSQL, with real processes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
