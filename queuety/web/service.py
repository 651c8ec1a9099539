"""What the requests of one HTTP API share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from queuety.store.bounded import Bounded
from queuety.store.connect import Connection
from queuety.web.access import Access, Sites
from queuety.web.room import Room
from queuety.web.states import States
from queuety.web.threads import Threads

if TYPE_CHECKING:
    from queuety.app import Queuety
    from queuety.web.operation import Operation

T = TypeVar("T")

THREADS = 8  # of the ten connections that an application's pool has; the others are for who mounts us
PATIENCE_S = 20.0  # for the answer to a question that may read much


@dataclass(slots=True)
class Service:
    """The application, who may do what, and the bounded goods: threads and streams."""

    app: Queuety
    access: Access
    sites: Sites
    threads: Threads
    room: Room
    operations: Iterable[Operation]
    states: States = field(init=False)

    def __post_init__(self) -> None:
        self.states = States(self.look)

    async def ask(self, work: Callable[[Queuety], T]) -> T:
        """Call a verb of the application in a thread."""
        return await self.threads.run(lambda: work(self.app))

    async def look(self, work: Callable[[Connection], T]) -> T:
        """Ask the database in a thread; what is not answered for PATIENCE_S is given up."""

        def patiently() -> T:
            with self.app._borrow() as conn:
                if not isinstance(conn, Bounded):
                    return work(conn)
                with conn.patient(PATIENCE_S):
                    return work(conn)

        return await self.threads.run(patiently)
