"""A container's limit counts, its parents' too, and what the kernel can drop is free."""

from pathlib import Path

import pytest

from peers.processes.cgroups import available_memory_bytes

GIB = 1 << 30
V2 = "0::{path}\n"
V2_MOUNT = "30 20 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = "4:memory:{path}\n3:cpu,cpuacct:{path}\n"
V1_MOUNT = (
    "31 20 0:27 {top} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 20 0:28 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


class Machine:
    """Files as /proc and /sys show them, with 20 GiB available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {20 * GIB // 1024} kB\n")

    def process(self, groups: str, mounts: str) -> None:
        self._write("proc/self/cgroup", groups)
        self._write("proc/self/mountinfo", mounts)

    def v2(self, path: str, limit: str, used: int, cache: int = 0) -> None:
        self._write(f"sys/fs/cgroup{path}/memory.max", f"{limit}\n")
        self._write(f"sys/fs/cgroup{path}/memory.current", f"{used}\n")
        stat = f"anon 1\ninactive_file {cache}\nactive_file 7\n"
        self._write(f"sys/fs/cgroup{path}/memory.stat", stat)

    def v1(self, path: str, limit: int, used: int, cache: int = 0) -> None:
        place = f"sys/fs/cgroup/memory{path}"
        self._write(f"{place}/memory.limit_in_bytes", f"{limit}\n")
        self._write(f"{place}/memory.usage_in_bytes", f"{used}\n")
        stat = f"inactive_file 1\ntotal_inactive_file {cache}\n"
        self._write(f"{place}/memory.stat", stat)

    @property
    def left(self) -> int:
        return available_memory_bytes(self.root)

    def _write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="ascii")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_groups_it_is_what_the_kernel_says(machine: Machine) -> None:
    assert machine.left == 20 * GIB
    machine.process(V2.format(path="/a"), V2_MOUNT.format(top="/"))
    machine.v2("/a", "max", 5 * GIB)
    assert machine.left == 20 * GIB


def test_a_limit_counts_less_what_cannot_be_dropped(machine: Machine) -> None:
    machine.process(V2.format(path="/a"), V2_MOUNT.format(top="/"))
    machine.v2("/a", str(8 * GIB), 6 * GIB, cache=2 * GIB)
    assert machine.left == 4 * GIB
    machine.v2("/a", str(8 * GIB), 9 * GIB)
    assert machine.left == 0, "never negative"


def test_a_parent_may_have_less_left(machine: Machine) -> None:
    machine.process(V2.format(path="/pod/box/deep"), V2_MOUNT.format(top="/"))
    machine.v2("/pod/box/deep", "max", GIB)
    machine.v2("/pod/box", str(8 * GIB), GIB)
    machine.v2("/pod", str(10 * GIB), 9 * GIB)
    assert machine.left == GIB


@pytest.mark.parametrize("path", ["/", "/docker/1f", "/docker/1f/inner"])
def test_a_container_sees_its_own_group_as_the_whole(machine: Machine, path: str) -> None:
    machine.process(V2.format(path=path), V2_MOUNT.format(top="/docker/1f"))
    machine.v2("", str(3 * GIB), GIB)
    assert machine.left == 2 * GIB


def test_v1_counts_and_its_parents_too(machine: Machine) -> None:
    machine.process(V1.format(path="/pod/box"), V1_MOUNT.format(top="/"))
    machine.v1("/pod/box", 9223372036854771712, GIB)
    assert machine.left == 20 * GIB, "that is no limit"
    machine.v1("/pod", 6 * GIB, 4 * GIB, cache=GIB)
    assert machine.left == 3 * GIB


def test_both_at_once_as_on_a_hybrid_machine(machine: Machine) -> None:
    groups = V1.format(path="/box") + V2.format(path="/box")
    unified = V2_MOUNT.format(top="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    machine.process(groups, V1_MOUNT.format(top="/") + unified)
    machine.v1("/box", 5 * GIB, GIB)
    assert machine.left == 4 * GIB


def test_this_machine_has_some() -> None:
    assert available_memory_bytes() > 0
