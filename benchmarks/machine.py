"""The machine of a benchmark, for readers of its figures. Must NOT change anything."""

import importlib.metadata
import os
import platform

import numpy as np

from lowcomm.codecs import compiled


def machine() -> dict[str, object]:
    """Names and versions, and the load by this process, other processes and other machines."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "stolen_s": round(_stolen_s() - _STOLEN_BEFORE_S, 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
        "compiled_codecs": compiled("int8") is not None,
    }


def _stolen_s() -> float:
    """CPU seconds that the hypervisor gave to other machines while this one wanted them."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


_STOLEN_BEFORE_S = _stolen_s()
"""The value at the start of this process."""
