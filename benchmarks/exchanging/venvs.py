"""Installs other systems, each into an environment of its own that is kept for the next run.

The environment includes this installation's packages: all systems use the same torch, and no large
package is fetched. Must NOT change this installation.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from protocols.types import LowcommError

MADE = ".made"
"""Name of a file that marks a complete environment."""
INSTALL_TIMEOUT_S = 900.0
ERROR_CHARS_MAX = 300


def python_with(requirements: Sequence[str], *, tell: Callable[[str], None]) -> str:
    """Return the interpreter of an environment with these packages and those installed here.

    Raises LowcommError with one line.
    """
    directory = cache_directory() / environment_name(requirements)
    named = " ".join(requirements)
    python = directory / "bin" / "python"
    if (directory / MADE).exists() and (directory / MADE).read_text() == host_paths():
        return str(python)
    tell(f"installing {named} into {directory}; this is kept")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _run([sys.executable, "-m", "venv", str(directory)], what=f"no environment for {named}")
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "host.pth").write_text(host_paths(), encoding="utf-8")
    constraints = directory / "constraints.txt"
    # Another version of torch would be gigabytes, and the comparison would not be equal.
    constraints.write_text(f"torch=={importlib.metadata.version('torch')}\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    _run([*pip, *requirements], what=f"{named} cannot be installed")
    (directory / MADE).write_text(host_paths(), encoding="utf-8")
    return str(python)


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lowcomm-bench"


def environment_name(requirements: Sequence[str]) -> str:
    pinned = "-".join(requirement.replace("==", "-") for requirement in requirements)
    return f"{pinned}-python{sys.version_info.major}.{sys.version_info.minor}"


def host_paths() -> str:
    """The directories of this installation's packages, one a line."""
    paths = sysconfig.get_paths()
    return "".join(f"{path}\n" for path in dict.fromkeys([paths["purelib"], paths["platlib"]]))


def _run(command: list[str], *, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LowcommError(f"{what}: not done after {INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr]
        raise LowcommError(f"{what}: {lines[-1].strip()[:ERROR_CHARS_MAX]}")
