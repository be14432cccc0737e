"""How many compute threads this process may use, and where."""

from __future__ import annotations

import os
from pathlib import Path

_SYS_CPU = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_cpus(sys_cpu: Path = _SYS_CPU) -> list[int]:
    """One logical CPU per physical core of the affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        mask = sorted(os.sched_getaffinity(0))
    else:
        mask = list(range(os.cpu_count() or 1))
    cores: dict[str, int] = {}
    for cpu in mask:
        cores.setdefault(_siblings(sys_cpu, cpu), cpu)
    return sorted(cores.values())


def default_num_threads(cpus: list[int], cgroup: Path = _CGROUP, own: Path = _OWN_CGROUP) -> int:
    """A thread per CPU, no more than the cgroup's CPU quota (rounded down, at least 1) pays for."""
    quota = cgroup_quota(cgroup, own)
    return len(cpus) if quota is None else max(1, min(len(cpus), int(quota)))


def _siblings(sys_cpu: Path, cpu: int) -> str:
    """A name of the core that a logical CPU belongs to."""
    try:
        return (sys_cpu / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def cgroup_quota(root: Path = _CGROUP, own: Path = _OWN_CGROUP) -> float | None:
    """CPUs that the process's cgroup may use (v2 cpu.max, v1 cfs quota), the least on its path."""
    quotas = []
    for group in _own_groups(own):
        for folder in (root / group, *(root / group).parents):
            if folder != root and root not in folder.parents:
                break
            quotas += [q for q in (_read_v2(folder), _read_v1(folder)) if q is not None]
    return min(quotas, default=None)


def _own_groups(own: Path) -> list[str]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            groups.append(f"{controllers}/{path.lstrip('/')}".strip("/"))
    return groups


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
