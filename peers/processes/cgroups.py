"""How much memory this process may still take: the machine's, and that of each control group.

A container's limit stands in cgroup files (v1 or v2), and those of its parents count too. What the
kernel can drop (file pages that are not in use) counts as free. Must NOT take any.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
UNLIMITED_BYTES = 1 << 60
"""v1 writes the largest page count for "no limit"."""


def available_memory_bytes(root: Path = ROOT) -> int:
    """The least of what the machine and the control groups have left; 0 if nothing is known.
    `root` is another one in tests."""
    left = [each for each in (_machine(root), *_groups(root)) if each is not None]
    return max(0, min(left, default=0))


def _machine(root: Path) -> int | None:
    """What the kernel says can be had without swapping."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups(root: Path) -> Iterator[int | None]:
    """Of each group that this process is in, from its own to the top that can be seen here."""
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
    """Where a group lies below what is mounted of the hierarchy; None: not below it. A container
    often sees its own group mounted as the whole, and its path as the host calls it, or as "/"."""
    if mounted == "/":
        return path.lstrip("/")
    if path in ("/", mounted):
        return ""
    return path[len(mounted) + 1 :] if path.startswith(f"{mounted}/") else None


def _mounts(root: Path, *, v2: bool) -> Iterator[tuple[str, str]]:
    """(what of the hierarchy, where it is mounted)."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        memory = "memory" in options.split(",")
        if len(before.split()) >= 5 and kind == ("cgroup2" if v2 else "cgroup") and (v2 or memory):
            yield before.split()[3], before.split()[4]


def _left(group: Path, *, v2: bool) -> int | None:
    """The limit less what is in use and cannot be dropped; None without a limit."""
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
    """None: no such file, or "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # Not there in this version of the kernel, or hidden from us.
