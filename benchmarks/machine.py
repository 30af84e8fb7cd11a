"""What a benchmark ran on, for whoever reads its figures. Must NOT change anything."""

import importlib.metadata
import os
import platform

import numpy as np

from lowcomm.codecs.blocks import compiled


def machine() -> dict[str, object]:
    """Names and versions, and how busy it was."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
        "compiled_codecs": compiled("int8") is not None,
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
