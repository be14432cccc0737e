"""Free memory over made-up /proc and cgroup trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.worker.free_memory import free_memory

MIB = 2**20
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"


class Machine:
    """A root folder with /proc and /sys."""

    def __init__(self, root: Path, available: int = 1000 * MIB) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 9 kB\nMemAvailable:  {available // 1024} kB\n")

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))

    def process(self, cgroup: str, mounts: str) -> None:
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", mounts)

    def v2(self, folder: str, limit: object, usage: int, cache: int = 0, high: object = "max"):
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        self.write(f"{folder}/memory.current", f"{usage}\n")
        self.write(f"{folder}/memory.stat", f"anon 5\nactive_file {cache}\ninactive_file 0\n")

    def v1(self, folder: str, limit: int, usage: int, cache: int = 0) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{folder}/memory.stat", f"total_active_file 0\ntotal_inactive_file {cache}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_it_is_what_the_machine_has(machine: Machine) -> None:
    assert free_memory(machine.root) == 1000 * MIB


def test_without_proc_it_is_all_memory(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_v2_limit_less_usage_and_page_cache_counts_as_free(machine: Machine) -> None:
    machine.process("0::/user/job\n", V2_MOUNT)
    machine.v2("sys/fs/cgroup/user/job", 500 * MIB, 300 * MIB, cache=50 * MIB)
    assert free_memory(machine.root) == 250 * MIB


@pytest.mark.parametrize("tight", ["", "/user", "/user/job"])
def test_every_parent_counts(machine: Machine, tight: str) -> None:
    machine.process("0::/user/job\n", V2_MOUNT)
    for folder in ("", "/user", "/user/job"):
        limit = 100 * MIB if folder == tight else "max"
        machine.v2(f"sys/fs/cgroup{folder}", limit, 30 * MIB)
    assert free_memory(machine.root) == 70 * MIB


def test_memory_high_counts_too(machine: Machine) -> None:
    machine.process("0::/job\n", V2_MOUNT)
    machine.v2("sys/fs/cgroup/job", 500 * MIB, 100 * MIB, high=400 * MIB)
    assert free_memory(machine.root) == 300 * MIB


def test_more_used_than_allowed_is_nothing_free(machine: Machine) -> None:
    machine.process("0::/job\n", V2_MOUNT)
    machine.v2("sys/fs/cgroup/job", 100 * MIB, 120 * MIB)
    assert free_memory(machine.root) == 0


def test_v1(machine: Machine) -> None:
    machine.process(
        "9:cpu,cpuacct:/elsewhere\n4:memory:/docker/abc\n0::/\n",
        "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    machine.v1("sys/fs/cgroup/memory", 9223372036854771712, 900 * MIB)
    machine.v1("sys/fs/cgroup/memory/docker/abc", 200 * MIB, 150 * MIB, cache=20 * MIB)
    assert free_memory(machine.root) == 70 * MIB


@pytest.mark.parametrize("seen", ["/docker/abc", "/", "/../../other", "/somewhere/else"])
def test_a_container_sees_its_own_cgroup_as_the_mount(machine: Machine, seen: str) -> None:
    """The mount shows /docker/abc of the host; the process's path may be the host's or not."""
    machine.process(f"0::{seen}\n", V2_MOUNT.replace(" / /sys", " /docker/abc /sys"))
    machine.v2("sys/fs/cgroup", 128 * MIB, 100 * MIB)
    assert free_memory(machine.root) == 28 * MIB


def test_unreadable_files_are_left_out(machine: Machine) -> None:
    machine.process("0::/job\n", V2_MOUNT)
    machine.write("sys/fs/cgroup/job/memory.max", "garbage")
    machine.write("sys/fs/cgroup/job/memory.current", "5")
    assert free_memory(machine.root) == 1000 * MIB


def test_this_machine() -> None:
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
