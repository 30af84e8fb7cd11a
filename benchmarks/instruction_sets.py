"""Builds the compiled loops for one instruction set of the CPU each.

A normal build has every loop once per instruction set, and the loader takes the best one that the
CPU has. These builds have each loop once, so that a benchmark or a test runs the code of other
CPUs. Must NOT be needed by an installed lowcomm: it needs the sources and a C compiler.
"""

import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300.0
"""Timeout of one compilation; the longest takes about 10 s here."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One instruction set for which the loops are built (FOR_EACH_CPU in the C files)."""

    name: str
    target: str
    """Value of the compiler's attribute `target`."""
    needs: tuple[str, ...]
    """CPU features, as numpy names them."""
    beyond: tuple[str, ...]
    """Prefixes of the numpy features that this set does not have."""

    def is_usable(self) -> bool:
        """Whether this CPU has the set, and there is a compiler."""
        features: Mapping[str, bool] = _umath().__cpu_features__
        return shutil.which("cc") is not None and all(map(features.get, self.needs))

    def environment(self) -> dict[str, str]:
        """Environment that makes numpy use this set too; numpy reads it when it is imported."""
        dispatched: Sequence[str] = _umath().__cpu_dispatch__
        disabled = [name for name in dispatched if self.beyond and name.startswith(self.beyond)]
        return {"NPY_DISABLE_CPU_FEATURES": ",".join(disabled)}


BASELINE = InstructionSet(
    "baseline", "sse2", ("SSE2",), ("SSE", "SSSE", "POPCNT", "AVX", "F16C", "FMA", "X86_V")
)
"""The set of every x86-64; numpy's own baseline may be larger (its 2.4 needs x86-64-v2)."""
AVX2 = InstructionSet("avx2", "avx2", ("AVX2",), ("AVX512", "X86_V4"))
AVX512 = InstructionSet("avx512f", "avx512f", ("AVX512F",), ())
INSTRUCTION_SETS = (BASELINE, AVX2, AVX512)


def usable() -> list[InstructionSet]:
    """The sets that this CPU has; none without a compiler, or on another kind of CPU."""
    return [one for one in INSTRUCTION_SETS if one.is_usable()]


def build(
    folder: Path,
    instruction_set: InstructionSet,
    *,
    only: str = "",
    flags: Sequence[str] = (),
    suffix: str = ".abi3.so",
) -> dict[str, Path]:
    """Compile the extension modules, or the one that `only` names, into `folder`.

    Returns the file of each module by its full name. `flags` come after those of the project.
    Raises subprocess.SubprocessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files: dict[str, Path] = {}
    for extension in project["tool"]["setuptools"]["ext-modules"]:
        name: str = extension["name"]
        if only not in ("", name):
            continue
        files[name] = folder / f"{name.rpartition('.')[2]}{suffix}"
        command = ["cc", *extension["extra-compile-args"], "-shared", "-fPIC"]
        command += [f'-DONE_CPU="{instruction_set.target}"', *flags]
        command += [f"-I{sysconfig.get_paths()['include']}", "-o", str(files[name])]
        command += [str(ROOT / source) for source in extension["sources"]]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return files


def load(file: Path) -> ModuleType:
    """Load the extension module in this file, without an entry in `sys.modules`."""
    name = file.name.partition(".")[0]
    spec = spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _umath() -> Any:
    return import_module("numpy._core._multiarray_umath")
