"""Large anonymous memory, from the system and back to it.

The kernel fills each page with zeros when it is first written: for 128 MiB at once that would be 30
to 60 ms in the event loop. Pages are small ones. With huge pages a first touch costs a fifth if
free memory is the machine's own, but four times as much if a hypervisor has taken it back
(docs/log.md), and later accesses are as fast. Must NOT know what the memory is for.
"""

import mmap


def fresh(size: int) -> memoryview:
    """`size` zero bytes; the memory is given back with the last view of them."""
    if not size:
        return memoryview(bytearray())
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
