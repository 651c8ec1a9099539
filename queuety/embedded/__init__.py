"""A PostgreSQL of our own in a private folder: for development, tests and a single machine.

Nothing has to be installed, chosen or stopped by hand. The first process that needs the server starts
it, others join it, and the last one to leave stops it. It listens on a Unix socket only, for the user who
owns it and for root: no port, no password. Linux and macOS; the folder must be on a local disk, since
neither the locks nor the socket work well over a network.

Who uses it is known from file locks, which the kernel drops whatever happens to a process:

    start.lock   exclusive, for as long as one process starts, joins, leaves or stops
    users.lock   shared, one per user; who can turn it exclusive is the last one
    server.lock  exclusive, inherited by every PostgreSQL process of this folder: free = none is left

A forked child shares its parent's lock on users.lock: join the workers before you release.
"""

from __future__ import annotations

from queuety.embedded.binaries import Binaries, available, find_binaries
from queuety.embedded.folder import data_dir
from queuety.embedded.server import Embedded, Status, psql_command, start, status, stop

__all__ = [
    "Binaries",
    "Embedded",
    "Status",
    "available",
    "data_dir",
    "find_binaries",
    "psql_command",
    "start",
    "status",
    "stop",
]
