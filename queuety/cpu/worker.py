"""The worker's side: receive a call, run it, send what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from queuety.cpu.surroundings import Surroundings
from queuety.cpu.wire import Kind, Raised, frame, read_frame, write


def serve(link: socket.socket) -> None:
    """Run calls until told to leave, or until the pool's process is gone."""
    # What a function starts must not hold the socket open after this process has died.
    os.set_inheritable(link.fileno(), False)
    threading.Thread(target=_die_with_the_pool, args=(link,), name="queuety-cpu-watch", daemon=True).start()
    home = os.getpid()
    write(link, frame(Kind.READY, 0))
    while (read := read_frame(link)) and read[0] is Kind.CALL:
        number = read[1]
        write(link, frame(Kind.BEGUN, number))
        kind, answer, before = answer_to(read[2])
        if (
            os.getpid() != home
        ):  # a fork that the function has made: the call, and its answer, are the worker's
            os._exit(0 if kind is Kind.VALUE else 1)
        del read  # large arguments are not kept while there is nothing to do
        _flush()
        left = before.put_back()  # before the answer: what goes wrong here is still this call's
        after = frame(Kind.READY, 0) if left is None else frame(Kind.SPENT, 0, left.encode())
        write(link, [*frame(kind, number, answer), *after])
        del answer


def answer_to(body: bytearray) -> tuple[Kind, bytes, Surroundings]:
    """Run the call: its answer, and what the function has found. Never raises, whatever the function does."""
    before = Surroundings()
    cut = body.index(0)
    name, packed = body[:cut].decode(), memoryview(body)[cut + 1 :]
    try:
        function = resolve(name)
    except LookupError as error:
        return Kind.REFUSED, str(error).encode(errors="replace"), before
    try:
        args, kwargs = pickle.loads(packed)
    except BaseException as error:  # noqa: BLE001 - classes are the caller's, and may do anything
        text = f"{name}: the arguments cannot be unpickled in the worker: {_line(error)}"
        return Kind.REFUSED, text.encode(errors="replace"), before
    del packed
    before = Surroundings()  # what a module starts as it is imported is to stay
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as error:  # noqa: BLE001 - whatever a function raises is its caller's
        return Kind.RAISED, pickle.dumps(_raised(error)), before
    try:
        return Kind.VALUE, pickle.dumps(value, protocol=5), before
    except BaseException as error:  # noqa: BLE001 - as above
        problem = (
            "is nested too deep to be pickled" if isinstance(error, RecursionError) else "cannot be pickled"
        )
        text = f"{name} returned a {type(value).__qualname__} that {problem}: {_line(error)}"
        return Kind.UNSENT, text.encode(errors="replace"), before


def resolve(name: str) -> Callable[..., Any]:
    """Import the function `module:name`; a LookupError says in one line why that cannot be done."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except BaseException as error:
        raise LookupError(f"{name}: importing {module} fails: {_line(error)}") from error
    for word in attribute.split("."):
        try:
            found = getattr(found, word)
        except Exception as error:
            raise LookupError(f"{name}: module {module} has no {attribute}") from error
    if not callable(found):
        raise LookupError(f"{name} is a {type(found).__name__}, which cannot be called")
    checked: Callable[..., Any] = found
    return checked


def _raised(error: BaseException) -> Raised:
    below = error.__traceback__ and error.__traceback__.tb_next  # without this module's frame
    trace = "".join(traceback.format_exception(type(error), error, below))
    blob = None
    # What ends a process, a task or a generator would do so in the caller: it arrives as a stand-in.
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        with contextlib.suppress(BaseException):
            blob = pickle.dumps(error, protocol=5)
    return f"{type(error).__module__}.{type(error).__qualname__}", _text(error), trace, blob


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {_text(error)}".split())[:500]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - somebody else's __str__
        return f"its text cannot be had ({type(problem).__name__})"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _die_with_the_pool(link: socket.socket) -> None:
    """End this process and what it started as soon as the pool's end of the socket is closed.

    The main thread may be busy for hours. An orderly stop says QUIT and closes only when this process is gone.
    """
    poll = select.poll()
    poll.register(link, 0)  # nothing but the hang-up
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll()):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
