"""Large memory, from the system and back to it: anonymous, or in files without names.

The kernel fills each page with zeros when it is first written: for 128 MiB at once that would be 30
to 60 ms in the event loop. Pages are small ones. With huge pages the first touch of 128 MiB takes
230 to 241 ms in place of 55 to 69 where a hypervisor takes free blocks back, and later accesses are
as fast (docs/log.md). If memory is short, the kernel writes pages of a file to the disk and takes
their memory. Must NOT know what the memory is for.
"""

import mmap
import os
from pathlib import Path


def fresh(size: int, directory: Path | None = None) -> memoryview:
    """`size` zero bytes; the memory is given back with the last view of them. With a directory they
    lie in a file there, as from `unnamed_file`. Raises OSError."""
    if not size:
        return memoryview(bytearray())
    if directory is None:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    fd = unnamed_file(directory, size)
    try:
        return memoryview(mmap.mmap(fd, size))
    finally:
        os.close(fd)  # The mapping keeps the file.


def unnamed_file(directory: Path, size: int) -> int:
    """Make a file of `size` zero bytes, and return its descriptor, which the caller owns.

    The file has no name, so a crash leaves nothing of it, and it has all its blocks: a write to a
    mapped page for which a full disk has no block would kill the process. Raises OSError if the
    disk refuses.
    """
    import tempfile  # Most nodes need it never, and none while it starts.

    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return os.dup(file.fileno())
    except OSError as error:
        mib = -(-size >> 20)
        why = f"{directory} takes no file of {mib} MiB ({error.strerror}): free space there"
        raise OSError(error.errno, why) from error
