"""What pyproject.toml admits is what `make test-lowest` runs with."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def number(version: str) -> tuple[int, ...]:
    """1.26 and 1.26.0 are the same."""
    parts = [int(part) for part in version.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def versions(lines: list[str], between: str) -> dict[str, tuple[int, ...]]:
    """By name; `between` stands before the version."""
    pairs = [line.partition(";")[0].strip().split(between) for line in lines]
    return {name: number(version) for name, version in pairs}


def test_each_lower_bound_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    admitted = versions(project["dependencies"], ">=")
    del admitted["torch"]  # The daemon does without it.
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    pinned = [line for line in text.splitlines() if not line.startswith("#")]
    assert versions(pinned, "==") == admitted
