"""Thread counts from affinity mask, core topology and cgroup, on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.kernels import cpu_threads
from octavo.kernels.cpu_threads import available_cpus, default_num_threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("mask", "siblings", "expected"),
    [
        ({0, 1, 2, 3}, ["0,2", "1,3", "0,2", "1,3"], [0, 1]),
        ({2, 3}, ["0,2", "1,3", "0,2", "1,3"], [2, 3]),
        ({0, 1, 2, 3}, ["0", "1", "2", "3"], [0, 1, 2, 3]),
        ({1, 3}, [], [1, 3]),
    ],
)
def test_one_cpu_per_core_of_the_mask(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mask: set[int],
    siblings: list[str],
    expected: list[int],
) -> None:
    for cpu, text in enumerate(siblings):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", text + "\n")
    monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda pid: mask, raising=False)
    assert available_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "350000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"cpu.max": "1600000 100000"}, 8),
        (
            "3:memory:/x\n4:cpu,cpuacct:/x\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "400000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            "4:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            8,
        ),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, 8),
    ],
)
def test_no_more_threads_than_the_quota_pays_for(
    tmp_path: Path, own: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path / "own", own)
    for name, text in files.items():
        write(tmp_path / "cgroup" / name, text + "\n")
    assert default_num_threads(list(range(8)), tmp_path / "cgroup", tmp_path / "own") == expected


def test_without_cgroups_every_cpu_gets_a_thread(tmp_path: Path) -> None:
    assert default_num_threads([0, 2, 4], tmp_path, tmp_path / "missing") == 3
