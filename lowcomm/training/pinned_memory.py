"""Shared memory of the node, pinned for a rank's GPU.

Copies between a GPU and ordinary host memory pass through a small buffer of CUDA's driver, and a
CPU makes them. A GPU reads and writes pinned memory by itself, at the speed of its bus, and several
copies can be queued. Must NOT copy anything, nor fail: without pinned memory copies are slower.
"""

import ctypes
import logging
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch

log = logging.getLogger(__name__)

REGISTER_READ_ONLY = 8
"""cudaHostRegisterReadOnly: the ranks map the daemon's results without the right to write."""
READ_ONLY_SUPPORTED = 113
"""CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED."""


def pin(buffers: Iterable[memoryview], device: torch.device) -> bool:
    """Pin buffers that begin at a page and keep their pages until this process ends. Returns
    whether all of them are pinned; on a CPU, where no buffer is, False."""
    if device.type != "cuda":
        return False
    pinned = [_pin(buffer, device) for buffer in buffers]
    return all(pinned)


def wait_for_copies(device: torch.device) -> None:
    """Wait for all copies that were queued to and from this device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _pin(buffer: memoryview, device: torch.device) -> bool:
    if buffer.readonly and not _supports_read_only():
        log.info("this GPU cannot pin read-only memory: results are copied more slowly")
        return False
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    flags = REGISTER_READ_ONLY if buffer.readonly else 0
    runtime = cast(Any, torch.cuda.cudart())
    error = int(runtime.cudaHostRegister(address, buffer.nbytes, flags))
    if not error:
        return True
    log.warning(
        "cannot pin %d MiB of shared memory (CUDA error %d): copies between the GPU and the daemon "
        "are slower",
        buffer.nbytes >> 20,
        error,
    )
    _forget_error(device)
    return False


def _supports_read_only() -> bool:
    """Ask the driver first: CUDA's runtime would report a refusal at a later kernel once more."""
    found = ctypes.c_int(0)
    index = torch.cuda.current_device()
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    error: int = driver.cuDeviceGetAttribute(ctypes.byref(found), READ_ONLY_SUPPORTED, index)
    return error == 0 and found.value == 1


def _forget_error(device: torch.device) -> None:
    """Let a kernel of no importance report the runtime's last error, which clears it."""
    try:
        torch.ones(1, device=device)
    except RuntimeError as error:
        log.debug("cleared: %s", error)
