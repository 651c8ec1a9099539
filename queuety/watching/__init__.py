"""Streams: what happens to jobs, as it happens, for any number of viewers."""
