"""Large anonymous memory, from the system and back to it.

The kernel fills each page with zeros when it is first written: for 128 MiB at once that would be 30
to 60 ms in the event loop. Pages are small ones. With huge pages the first touch of 128 MiB takes
230 to 241 ms in place of 55 to 69 where a hypervisor takes free blocks back, and later accesses are
as fast (docs/log.md). Must NOT know what the memory is for.
"""

import mmap


def fresh(size: int) -> memoryview:
    """`size` zero bytes; the memory is given back with the last view of them."""
    if not size:
        return memoryview(bytearray())
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
