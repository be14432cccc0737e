"""How much memory a process may still take: the machine's, and that of every cgroup around it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can take without swapping or being killed.

    The least of the machine's MemAvailable and, for the process's cgroup and each of its parents
    (version 1 and 2), limit - usage; page cache counts as free, for the kernel drops it on demand.

    Args:
        root: where /proc and /sys are looked up.
    """
    return min([_machine_available(root), *_cgroup_headrooms(root)])


def _machine_available(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    # No Linux, or one before 3.14: all the memory there is.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_headrooms(root: Path) -> Iterator[int]:
    for version, folder in _cgroup_folders(root):
        headroom = _headroom_v2(folder) if version == 2 else _headroom_v1(folder)
        if headroom is not None:
            yield max(0, headroom)


def _cgroup_folders(root: Path) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the process's memory cgroup and its parents, in every hierarchy."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        cgroups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    paths: dict[int, str] = {}
    for line in cgroups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    for line in mounts:
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        is_v1 = kind == "cgroup" and "memory" in options.split(",")
        version = 2 if kind == "cgroup2" else 1 if is_v1 else 0
        if version in paths:
            mount_root, mount_point = mount.split(" ")[3:5]
            top = root / mount_point.lstrip("/")
            inside = _below(paths[version], mount_root)
            yield version, top
            for depth in range(len(inside.parts)):
                yield version, top.joinpath(*inside.parts[: depth + 1])


def _below(path: str, mount_root: str) -> PurePosixPath:
    """The cgroup's path under the mount; the mount itself where the path lies outside of it (a
    container that sees the host's paths)."""
    here = PurePosixPath(path)
    if ".." not in here.parts and here.is_relative_to(mount_root):
        return here.relative_to(mount_root)
    return PurePosixPath()


def _headroom_v2(folder: Path) -> int | None:
    limits = [_number(folder / "memory.max"), _number(folder / "memory.high")]
    usage = _number(folder / "memory.current")
    known = [limit for limit in limits if limit is not None]
    if not known or usage is None:
        return None
    return min(known) - usage + _page_cache(folder, "active_file", "inactive_file")


def _headroom_v1(folder: Path) -> int | None:
    limit = _number(folder / "memory.limit_in_bytes")
    usage = _number(folder / "memory.usage_in_bytes")
    if limit is None or usage is None:
        return None
    return limit - usage + _page_cache(folder, "total_active_file", "total_inactive_file")


def _number(file: Path) -> int | None:
    """The integer that a file holds; None where it is missing or says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _page_cache(folder: Path, *names: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    entries = dict(line.split(" ", 1) for line in lines if " " in line)
    return sum(int(entries[name]) for name in names if entries.get(name, "").strip().isdigit())
