"""Functions for CPU pools: good ones and all kinds of bad ones."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def add(a: int, b: int = 0) -> int:
    return a + b


def echo(value: Any) -> Any:
    return value


def size(value: Any) -> int:
    return len(value)


async def wait_and_add(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    return a + b


class Shop:
    @staticmethod
    def price(cents: int) -> str:
        return f"{cents / 100:.2f}"


NOT_A_FUNCTION = 7


def pid() -> int:
    return os.getpid()


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def note(path: str, text: str, seconds: float = 0.0) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    time.sleep(seconds)


def wait_for(path: str) -> int:
    """Until the file is there."""
    while not Path(path).exists():
        time.sleep(0.005)
    return os.getpid()


def burn(rounds: int) -> int:
    """Fixed work that never lets go of the interpreter for long by itself."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


def leave(code: int) -> None:
    os._exit(code)


def segfault() -> None:
    ctypes.string_at(0)


def signal_myself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave_a_fork_that_holds_everything_open(path: str) -> None:
    """Exit, while a fork in a group of its own lives on."""
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        time.sleep(30)
        os._exit(0)
    Path(path).write_text(str(child))
    os._exit(4)


def close_everything() -> None:
    os.closerange(3, 256)


def write_everywhere() -> None:
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, b"nonsense that is longer than a head")
        except OSError:
            continue
    time.sleep(60)


def start_a_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(path).write_text(str(child.pid))
    time.sleep(60)


class OutOfStock(Exception):
    def __init__(self, article: str) -> None:
        super().__init__(article)
        self.article = article
        self.left = 0


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot travel")
        self.open = lambda: None


class TwoArguments(Exception):
    """Pickles, but cannot be unpickled: it keeps one argument and takes two."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def out_of_stock(article: str) -> None:
    raise OutOfStock(article)


def fail(kind: str) -> None:
    kinds: dict[str, type[BaseException]] = {
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "GeneratorExit": GeneratorExit,
        "CancelledError": asyncio.CancelledError,
        "StopIteration": StopIteration,
        "Unpicklable": Unpicklable,
        "NoText": NoText,
    }
    if kind == "TwoArguments":
        raise TwoArguments("kept", "as one")
    raise kinds[kind]()


def local_class() -> object:
    class Local:
        pass

    return Local()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def a_lambda() -> object:
    return lambda: None


class Trap:
    """Pickles here, and fails when it is unpickled anywhere."""

    def __reduce__(self) -> Any:
        return (_spring, ())


def _spring() -> None:
    raise ValueError("the trap")


def trap() -> Trap:
    return Trap()


def chance(number: int, seed: int) -> int:
    """Crash, raise, take long or return, by a draw of its own."""
    draw = random.Random(seed * 100_003 + number).random()
    if draw < 0.02:
        os.kill(os.getpid(), signal.SIGKILL)
    if draw < 0.03:
        os._exit(0)
    if draw < 0.05:
        raise OutOfStock(str(number))
    return number


def fork_and_return_twice() -> str:
    if os.fork() == 0:
        return "from the fork"
    time.sleep(0.3)
    return "from the worker"


def answer_for(number: int) -> None:
    """Answer for another call, as a fork that went on serving would."""
    from queuety.cpu.wire import Kind, frame, write

    link = next(
        thing for thing in gc.get_objects() if isinstance(thing, socket.socket) and thing.fileno() > 2
    )
    write(link, frame(Kind.VALUE, number, pickle.dumps("a lie")))
    time.sleep(60)


def leave_behind(what: str) -> int:
    """Return, and leave something that strikes the process later."""
    match what:
        case "alarm":
            signal.alarm(1)
        case "timer":
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.2)
        case "handler":
            signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
        case "ignored":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "mask":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        case "directory":
            os.chdir("/")
        case "raising":
            signal.signal(signal.SIGALRM, _raise)
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            with contextlib.suppress(ZeroDivisionError):
                time.sleep(1)
        case "watchdog":
            faulthandler.dump_traceback_later(0.5, exit=True)
        case "thread":
            threading.Timer(0.5, os._exit, [9]).start()
        case "raw thread":
            _thread.start_new_thread(time.sleep, (60,))
            time.sleep(0.05)  # it has begun
        case "child":
            subprocess.Popen(["sleep", "60"])
        case "fork":
            if os.fork() == 0:
                time.sleep(60)
        case "dead child":
            subprocess.Popen(["true"])
            time.sleep(0.2)
        case "ended thread":
            threading.Thread(target=time.sleep, args=(0.005,)).start()
    return os.getpid()


def _raise(*_: object) -> None:
    1 / 0  # noqa: B018


def surroundings() -> tuple[object, ...]:
    burn(1_000_000)
    return (
        os.getpid(),
        os.getcwd(),
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGALRM),
    )
