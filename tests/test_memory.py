"""Readings of memory: from trees of files as the kernel writes them, and from this very process."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from queuety.process.memory import Peak, Pressure, Reading, System, resident

MB = 1 << 20
MEMINFO = "MemTotal:       16384000 kB\nMemFree:          100000 kB\nMemAvailable:    8192000 kB\n"


def tree(root: Path, files: dict[str, str]) -> System:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return System(root / "proc", root / "cgroup")


def test_the_limit_of_the_container_counts_and_not_the_memory_of_the_host(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "cgroup/memory.max": f"{512 * MB}\n",
            "cgroup/memory.high": "max\n",
            "cgroup/memory.current": f"{200 * MB}\n",
            "cgroup/memory.stat": f"anon {150 * MB}\nfile {50 * MB}\ninactive_file {30 * MB}\nactive_file {20 * MB}\n",
        },
    )

    assert system.read() == Reading((512 - 200 + 30 + 10) * MB, 512 * MB, "cgroup v2")


def test_the_tightest_group_on_the_way_to_the_root_decides(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/kubepods/pod1/box\n",
            "cgroup/kubepods/memory.max": f"{4096 * MB}\n",
            "cgroup/kubepods/memory.current": f"{1000 * MB}\n",
            "cgroup/kubepods/pod1/memory.max": f"{1024 * MB}\n",
            "cgroup/kubepods/pod1/memory.current": f"{1000 * MB}\n",
            "cgroup/kubepods/pod1/box/memory.max": "max\n",
            "cgroup/kubepods/pod1/box/memory.current": f"{100 * MB}\n",
        },
    )

    assert system.read() == Reading(24 * MB, 1024 * MB, "cgroup v2")


def test_memory_high_is_a_limit_too(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "cgroup/memory.max": f"{512 * MB}\n",
            "cgroup/memory.high": f"{400 * MB}\n",
            "cgroup/memory.current": f"{100 * MB}\n",
        },
    )

    assert system.read() == Reading(300 * MB, 400 * MB, "cgroup v2")


def test_version_one_is_read_where_version_two_has_no_memory(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
            "cgroup/memory/memory.limit_in_bytes": f"{256 * MB}\n",  # mounted at the container's own group
            "cgroup/memory/memory.usage_in_bytes": f"{100 * MB}\n",
            "cgroup/memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {10 * MB}\n",
            "cgroup/unified/cgroup.procs": "1\n",
        },
    )

    assert system.read() == Reading(166 * MB, 256 * MB, "cgroup v1")


def test_no_limit_of_version_one_leaves_the_host(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/\n",
            "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cgroup/memory/memory.usage_in_bytes": f"{100 * MB}\n",
        },
    )

    assert system.read() == Reading(8192000 << 10, 16384000 << 10, "host")


def test_a_host_with_less_left_than_its_container_was_promised_decides(tmp_path):
    system = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "cgroup/memory.max": f"{65536 * MB}\n",
            "cgroup/memory.current": f"{100 * MB}\n",
        },
    )

    assert system.available() == 8192000 << 10


@pytest.mark.parametrize("text", ["", "rubbish\n", "-5\n", "12 13\n"])
def test_odd_files_are_no_reading(tmp_path, text):
    system = tree(
        tmp_path,
        {"proc/meminfo": text, "proc/self/cgroup": "0::/\n" + text, "cgroup/memory.max": text},
    )

    assert system.read() == Reading(None, None, "unknown")
    assert system.pressure() is None


def test_pressure_is_that_of_the_group_and_else_of_the_host(tmp_path):
    host = "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n"
    ours = (
        "some avg10=40.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=12.00 avg60=0.00 avg300=0.00 total=1\n"
    )
    system = tree(tmp_path, {"proc/self/cgroup": "0::/box\n", "proc/pressure/memory": host})

    assert system.pressure() == Pressure(1.0, 0.5)
    tree(tmp_path, {"cgroup/box/memory.pressure": ours})
    assert system.pressure() == Pressure(40.25, 12.0)


def touch(size: int) -> None:
    """Take and give back memory of its own: the allocator might hand out what this process has had already."""
    with mmap.mmap(-1, size) as taken:
        for place in range(0, size, mmap.PAGESIZE):
            taken[place] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_peak_is_that_of_the_run_and_not_of_a_bigger_one_before():
    peak = Peak()
    touch(120 * MB)

    peak.start()
    touch(30 * MB)
    taken = peak.stop()

    assert taken is not None
    assert 28 * MB <= taken <= 34 * MB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_what_is_resident_before_a_run_is_not_counted_as_its_own():
    kept = bytearray(b"x") * (40 * MB)
    peak = Peak()

    peak.start()
    taken = peak.stop()

    assert (resident() or 0) > len(kept)
    assert taken is not None
    assert taken < 4 * MB
