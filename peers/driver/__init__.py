"""The asynchronous shell around one core.

In: what the connections, the ranks' arithmetic and the daemon report. Out: events for the core, and
its commands done: by the mesh, the data planes, the disk and the daemon. Must NOT decide anything.

Start reading: driver.py, then round_jobs.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.driver.driver import AT_ONCE, Driver

__all__ = ["AT_ONCE", "Driver"]

__getattr__ = lazy_exports(
    __name__,
    {
        "driver": "AT_ONCE Driver",
    },
)
