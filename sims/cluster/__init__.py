"""Several real daemons: `lowcomm demo` and `lowcomm sim`.

In: a configuration, a number of nodes, faults. Out: daemons as a user would start them, a live
view, a summary and a report. Must NOT reach into a daemon: it uses the command line and the event
log, as a user does.

Start reading: local_cluster.py, then launch.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.cluster.local_cluster import LOG, LocalCluster, LocalNode
    from sims.cluster.process_tree import descendants

__all__ = ["LOG", "LocalCluster", "LocalNode", "descendants"]

__getattr__ = lazy_exports(
    __name__,
    {
        "local_cluster": "LOG LocalCluster LocalNode",
        "process_tree": "descendants",
    },
)
