"""The memory that this process may still take: the machine's, and that of each control group.

A container's limit is in cgroup files (v1 or v2), and its parents' limits count too. Memory that
the kernel can drop (file pages that are not in use) counts as free. Must NOT take memory.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
UNLIMITED_BYTES = 1 << 60
"""v1 writes the largest page count for "no limit"."""


def available_memory_bytes(root: Path = ROOT) -> int:
    """Bytes left, the minimum over the machine and the control groups; 0 if nothing is known.
    `root`: another directory in tests."""
    left = [each for each in (_machine(root), *_groups(root)) if each is not None]
    return max(0, min(left, default=0))


def _machine(root: Path) -> int | None:
    """Bytes that the kernel can give without swapping."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups(root: Path) -> Iterator[int | None]:
    """Bytes left in each group of this process, from its own to the visible top."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        v2 = not controllers
        if not v2 and "memory" not in controllers.split(","):
            continue
        for mounted, top in _mounts(root, v2=v2):
            inner = _inside(path, mounted)
            if inner is None:
                continue
            place = root / top.lstrip("/")
            for group in (place / inner, *(place / inner).parents):
                yield _left(group, v2=v2)
                if group == place:
                    break


def _inside(path: str, mounted: str) -> str | None:
    """The path of a group below the mounted part of the hierarchy; None if it is not below it. A
    container often sees its own group mounted as the whole, with its path on the host, or "/"."""
    if mounted == "/":
        return path.lstrip("/")
    if path in ("/", mounted):
        return ""
    return path[len(mounted) + 1 :] if path.startswith(f"{mounted}/") else None


def _mounts(root: Path, *, v2: bool) -> Iterator[tuple[str, str]]:
    """(mounted part of the hierarchy, mount point)."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        memory = "memory" in options.split(",")
        if len(before.split()) >= 5 and kind == ("cgroup2" if v2 else "cgroup") and (v2 or memory):
            yield before.split()[3], before.split()[4]


def _left(group: Path, *, v2: bool) -> int | None:
    """The limit minus the memory in use that cannot be dropped; None without a limit."""
    limit_name, used_name, cache = (
        ("memory.max", "memory.current", "inactive_file")
        if v2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    limit, used = _number(group / limit_name), _number(group / used_name)
    if limit is None or used is None or limit >= UNLIMITED_BYTES:
        return None
    found = [line.split() for line in _lines(group / "memory.stat")]
    droppable = next((int(pair[1]) for pair in found if pair[0] == cache), 0)
    return limit - max(0, used - droppable)


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # It does not exist in this kernel, or is hidden.
