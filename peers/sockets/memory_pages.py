"""Large memory, from the system and back to it.

It is filled with zeros where it is first written to, page by page: 128 MiB at once would be a turn
of 30 to 60 ms in the loop. Pages are small ones. In huge pages a first touch costs a fifth where
free memory is the machine's own, but four times as much where a hypervisor has taken it back
(docs/exchange.md), and whatever goes over it afterwards takes as long. Must NOT know what it is
for.
"""

import mmap


def fresh(size: int) -> memoryview:
    """So many bytes, all zero, that are given back with the last view of them."""
    if not size:
        return memoryview(bytearray())
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
