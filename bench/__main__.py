"""`python -m bench [FIGURE…]`: measure on an embedded PostgreSQL that is made for it and removed afterwards."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.common import Bench, BenchError, Options
from bench.peers.environment import NAMES
from queuety.errors import QueuetyError

FIGURES = {
    "drain": "no-op jobs per second, against the floor and the peers",
    "ballast": "the same among millions of rows that are not due",
    "snapshot": "the same while an old snapshot is held open",
    "enqueue": "single and bulk, against bare INSERT and COPY",
    "latency": "enqueue to start on an idle pool",
    "kill": "SIGKILL of a worker to the next start of its job",
    "idle": "transactions and CPU of a pool with nothing to do",
    "schedules": "CPU of a scheduler with 10,000 schedules, beside one with none",
    "memory": "of each process of a pool",
    "group": "a concurrency group over three pools, without kills and with",
    "rate": "a rate over four pools: starts in the fullest window, and on average",
    "parked": "the drain among a million jobs that wait for full groups",
    "price": "the drain of jobs whose limit is never reached, against plain ones",
}
LIMITS = ("group", "rate", "parked", "price")  # figures of bench.limits; any other has a module of its own


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; 0, or 1 if a figure could not be taken."""
    given = _parser().parse_args(arguments)
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        print(f"no figure {unknown[0]!r}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    options = Options(
        jobs=given.jobs,
        rounds=given.rounds,
        scale=given.scale,
        samples=given.samples,
        seconds=given.seconds,
        busy_ms=given.busy_ms,
        peers=NAMES if given.peers else tuple(given.peer),
        peer_python=given.peer_python,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all is cleaned up
    code = 0
    try:
        with Bench.open(options, given.dir) as bench:
            for name in given.figures or FIGURES:
                try:
                    _measure(name, bench)
                except (BenchError, QueuetyError) as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    code = 1
                if given.json:  # after each figure: an interrupted run keeps what it has
                    given.json.write_text(bench.as_json() + "\n", "utf-8")
    except KeyboardInterrupt:
        return 130
    except (BenchError, QueuetyError) as error:
        print(error, file=sys.stderr)
        return 1
    return code


def _measure(name: str, bench: Bench) -> None:
    module, function = ("limits", name) if name in LIMITS else (name, "measure")
    getattr(importlib.import_module(f"bench.{module}"), function)(bench)


def _parser() -> argparse.ArgumentParser:
    figures = "\n".join(f"  {name:<10}{text}" for name, text in FIGURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"figures (all, if none is named):\n{figures}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE")
    parser.add_argument(
        "--jobs", type=_count, help="jobs of one drain or bulk (each figure has its own default)"
    )
    parser.add_argument("--rounds", type=_count, help="how often each contestant has its turn")
    parser.add_argument("--samples", type=_count, help="latency (300) and kill (30): how many")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="idle and schedules: how long to watch (30; whole minutes)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="ballast and parked: share of the millions (default 1)"
    )
    parser.add_argument(
        "--busy-ms", type=float, default=50.0, help="group: how long each job takes (default 50)"
    )
    parser.add_argument(
        "--peers", action="store_true", help="measure other queues too; installs them from PyPI into a cache"
    )
    parser.add_argument(
        "--peer", action="append", default=[], choices=NAMES, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--peer-python", default="", help="interpreter for peers that need a newer one than ours"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument(
        "--dir", type=Path, help="where the database is made (default: the temporary directory)"
    )
    return parser


def _count(text: str) -> int:
    if not text.replace("_", "").isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
