"""The write-ahead log on disk.

Term, vote, log entries and snapshots survive a crash. In: Persist commands. Out: a confirmation for
each write after fsync, and the state that a restarted peer begins with. A torn last record is
dropped; any other damage is an error. Must NOT decide what is written, nor what a full disk means.

Start reading: wal.py, then wal_format.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.storage.file_lock import open_locked
    from peers.storage.fsync import make_empty, make_private, sync, write_private
    from peers.storage.wal import FILE, UntrustedError, Wal
    from peers.storage.wal_writer import LOG_THREAD

__all__ = [
    "FILE",
    "LOG_THREAD",
    "UntrustedError",
    "Wal",
    "make_empty",
    "make_private",
    "open_locked",
    "sync",
    "write_private",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "file_lock": "open_locked",
        "fsync": "make_empty make_private sync write_private",
        "wal": "FILE UntrustedError Wal",
        "wal_writer": "LOG_THREAD",
    },
)
