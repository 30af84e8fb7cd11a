"""Copies between a rank's GPU and the node's shared memory: pinned memory, and a side stream.

Copies between a GPU and ordinary host memory pass through a small buffer of CUDA's driver, and a
CPU makes them. A GPU reads and writes pinned memory by itself, at the speed of its bus, and several
copies can be queued. Without pinned memory copies are slower, but nothing fails. Must NOT know
rounds, results or messages.
"""

import ctypes
import logging
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

_ALIGNED = 64
"""Bytes: where a tensor of any type may begin."""
_kept: list[memoryview] = []
"""All that is pinned. If it were unmapped, CUDA would take what is mapped to its address later for
the same memory, and copy to and from the old pages."""

REGISTER_READ_ONLY = 8
"""cudaHostRegisterReadOnly: the ranks map the daemon's results without the right to write."""
READ_ONLY_SUPPORTED = 113
"""CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED."""


def pin(buffers: Iterable[memoryview], device: torch.device) -> bool:
    """Pin buffers that begin at a page, and keep them until this process ends. Returns whether all
    of them are pinned; on a CPU, where no buffer is, False."""
    if device.type != "cuda":
        return False
    pinned = [_pin(buffer, device) for buffer in buffers]
    return all(pinned)


class SideCopies:
    """Copies in a thread and on a stream of their own, while the training loop goes on.

    The thread makes one copy after the other. Memory of the host that is not pinned is reached
    through a pinned buffer as large as the largest tensor.
    """

    def __init__(self, device: torch.device) -> None:
        """`device`: a GPU."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copies")
        self._buffer = torch.empty(0)
        self._is_read = False
        """Whether a copy from the buffer may be under way."""
        self._last: Future[None] | None = None
        self._fetched: dict[int, tuple[list[Tensor], Future[None]]] = {}

    def write(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Begin to copy `sources` (on the GPU, as all work that is queued now leaves them) to
        `targets`. The sources may change at once: they are first copied on the GPU, which takes
        memory of their size until the copy ends. So at most one is under way."""
        self.finish()
        kept = [source.clone() for source in sources]
        self._last = self._submit(kept, targets)

    def then(self, call: Callable[[], None]) -> None:
        """Call `call` in the thread after the copies that have begun, unless one fails."""
        copied = self._last

        def follow() -> None:
            if copied is not None:
                copied.result()
            call()

        self._last = self._thread.submit(follow)

    def fetch(self, key: int, sources: Sequence[Tensor]) -> None:
        """Begin to copy `sources`, of the host, to the GPU, unless that has begun for this key. The
        copies belong to the stream that is current now."""
        if key not in self._fetched:
            made = [torch.empty(source.shape, device=self._device) for source in sources]
            self._fetched[key] = made, self._submit(sources, made)

    def fetched(self, key: int, sources: Sequence[Tensor]) -> list[Tensor]:
        """Wait for the copies of `fetch`, if need be begin it. The next ones for this key are
        others."""
        self.fetch(key, sources)
        made, copied = self._fetched.pop(key)
        copied.result()
        return made

    def check(self) -> None:
        """Raise the error of the last `write` or `then`, if it has ended with one."""
        if self._last is not None and self._last.done():
            self._last.result()

    def finish(self) -> None:
        """Wait for the last `write` or `then`; raises its error."""
        if self._last is not None:
            self._last.result()

    def _submit(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> "Future[None]":
        queued = torch.cuda.Event()
        queued.record(torch.cuda.current_stream(self._device))
        return self._thread.submit(self._copy_all, queued, sources, targets)

    @torch.no_grad()
    def _copy_all(
        self, queued: torch.cuda.Event, sources: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(queued)
            for source, target in zip(sources, targets, strict=True):
                self._copy(source, target)
            self._wait()

    def _copy(self, source: Tensor, target: Tensor) -> None:
        outward = target.device.type == "cpu"
        host = target if outward else source
        if host.is_pinned():
            target.copy_(source, non_blocking=True)
            return
        if self._buffer.numel() < host.numel():
            self._buffer = torch.empty(host.numel(), pin_memory=True)
        if self._is_read:
            self._wait()
        through = self._buffer[: host.numel()].view(host.shape)
        if outward:
            through.copy_(source, non_blocking=True)
            self._wait()
            target.copy_(through)
        else:
            through.copy_(source)
            target.copy_(through, non_blocking=True)
            self._is_read = True

    def _wait(self) -> None:
        # It sleeps: a stream's own `synchronize` would keep a CPU busy.
        done = torch.cuda.Event(blocking=True)
        done.record(self._stream)
        done.synchronize()
        self._is_read = False


class HostCopies:
    """Copies of many tensors in the host's memory: those of a GPU in pinned memory, which stays."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    @torch.no_grad()
    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of these tensors. They hold until the next call."""
        made = {name: each.clone() for name, each in tensors.items() if each.device.type == "cpu"}
        others = {name: each for name, each in tensors.items() if name not in made}
        sizes = [-(-each.nbytes // _ALIGNED) * _ALIGNED for each in others.values()]
        if self._memory.numel() < sum(sizes):
            self._memory = _pinned(sum(sizes), next(iter(others.values())).device)
        start = 0
        for (name, each), size in zip(others.items(), sizes, strict=True):
            place = self._memory[start : start + each.nbytes].view(each.dtype).view(each.shape)
            made[name] = place.copy_(each, non_blocking=True)
            start += size
        for device in {each.device for each in others.values()}:
            wait_for_copies(device)
        return made


def _pinned(size: int, device: torch.device) -> Tensor:
    """Memory of the host, uint8 [size], pinned until this process ends."""
    # torch's own allocator would take up to twice as much.
    memory = memoryview(mmap.mmap(-1, size))
    pin([memory], device)
    return torch.frombuffer(memory, dtype=torch.uint8)


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
        _kept.append(buffer)
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
