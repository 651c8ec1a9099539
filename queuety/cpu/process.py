"""One worker's process, as the pool sees it: start it, talk to it without blocking, kill it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass

from queuety.cpu.call import Call
from queuety.cpu.wire import ABOUT_NO_CALL, HEAD, Kind, frame

# A new interpreter, not a fork: threads and event loops of this process stay here. `__main__` is not imported
# again, as multiprocessing would. -P: nothing of the current directory may stand in for the standard library.
_BOOT = (
    "import json, socket, sys; link = socket.socket(fileno=int(sys.argv[1]));"
    " sys.path[:] = json.loads(link.makefile('rb', 0).readline());"
    " from queuety.cpu.worker import serve; serve(link)"
)
_CHUNK = 1 << 18
_CHUNKS_AT_ONCE = 16  # then the other workers have their turn
_DEATH_S = 1.0  # from the end of the connection to the end of the process


@dataclass(frozen=True)
class End:
    """How a process ended. code: its exit code.  signal: the one that killed it.  text: else, what is known of it."""

    code: int | None = None
    signal: int | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return self.text
        if self.signal is not None:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(self.signal).name}"
            return f"was killed by signal {self.signal}"
        return "ended" if self.code is None else f"ended with exit code {self.code}"


class WorkerProcess:
    """A worker's process, its socket, and the call that it has.

    ready: it can be given a call.  served: it has answered one, and has not said yet that it can be given the next.
    begun_at: monotonic time at which the call's work began.
    acts_by: monotonic time by which it must have done what it was last told; else it is killed.
    """

    def __init__(self) -> None:
        """Start the process; OSError if the system refuses one."""
        self.link, theirs = socket.socketpair()
        self.link.setblocking(False)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Its own group: a Ctrl+C is the application's alone, and what a function starts can be killed with it.
                process_group=0,
            )
        except BaseException:
            self.link.close()
            raise
        finally:
            theirs.close()
        self.pid = self._popen.pid
        self.ready = False
        self.served = False
        self.leaving = False
        self.call: Call | None = None
        self.begun_at: float | None = None
        self.acts_by: float | None = None
        self.received = self.sent = 0  # bytes, ever
        self._inbox = bytearray()
        path = [place for place in sys.path if isinstance(place, str)]
        self._outbox = deque([memoryview(json.dumps(path).encode() + b"\n")])

    @property
    def idle(self) -> bool:
        return self.ready and self.call is None and not self.leaving

    @property
    def sending(self) -> bool:
        return bool(self._outbox)

    def tell(self, kind: Kind, number: int = 0, *parts: bytes) -> None:
        """Queue a frame; `talk` sends it."""
        self._outbox.extend(memoryview(part) for part in frame(kind, number, *parts) if part)

    def talk(self) -> tuple[list[tuple[Kind, memoryview]], bool]:
        """Send and receive what can be without waiting: the frames that are complete, and whether it is connected.

        Raises ValueError for what is no frame, or is about another call than the one that it has.
        """
        try:
            self._send()
            connected = self._receive()
        except ConnectionError:
            connected = False
        return self._frames(), connected

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._outbox:
                part = self._outbox[0]
                sent = self.link.send(part[: 4 * _CHUNK])
                self.sent += sent
                if sent == len(part):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = part[sent:]

    def _receive(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS_AT_ONCE):
                chunk = self.link.recv(_CHUNK)
                if not chunk:
                    return False
                self._inbox += chunk
                self.received += len(chunk)
        return True

    def _frames(self) -> list[tuple[Kind, memoryview]]:
        found: list[tuple[Kind, memoryview]] = []
        while len(self._inbox) >= HEAD.size:
            length, kind, number = HEAD.unpack_from(self._inbox)
            kind = Kind(kind)  # before waiting for a length that nobody meant
            if number != (0 if kind in ABOUT_NO_CALL else self.call and self.call.number):
                raise ValueError(f"{kind!r} for call {number}, which does not run")
            if len(self._inbox) < HEAD.size + length:
                break
            found.append((kind, memoryview(self._inbox)[HEAD.size : HEAD.size + length]))
            self._inbox = self._inbox[HEAD.size + length :]  # a new one: the body is not copied
        return found

    def end(self) -> End | None:
        """How the process has ended, or None while it lives. It stays a zombie, so its number is not given away."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13; there it is no zombie any more
            code = self._popen.poll()
            return code if code is None else End(code=code) if code >= 0 else End(signal=-code)
        try:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else in this process waited for it
            return End()
        if info is None:
            return None
        if info.si_code == os.CLD_EXITED:
            return End(code=info.si_status)
        return End(signal=info.si_status)

    def last_words(self) -> End:
        """How the process ended whose connection is closed; it is given a second for that."""
        patience = time.monotonic() + _DEATH_S
        while (end := self.end()) is None and time.monotonic() < patience:
            time.sleep(0.001)
        return end or End()

    def kill(self) -> None:
        """Kill the process and all of its group: what a function has started and left in it."""
        with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
            if hasattr(os, "waitid"):  # a number that was waited for may be somebody else's by now
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.killpg(self.pid, signal.SIGKILL)
        self.link.close()
        self._outbox.clear()
        self._inbox.clear()

    def reaped(self, patience_s: float = 0.0) -> bool:
        """Whether the killed process is gone for good."""
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True
