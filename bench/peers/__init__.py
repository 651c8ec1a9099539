"""Other queues, measured by the same clock.

Each lives in a virtual environment of its own outside the repository and is driven by a module here, which imports
nothing but that queue and `bench.peers.driver`.
"""
