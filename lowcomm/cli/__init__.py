"""The commands of `lowcomm`.

They begin and join runs, steer them, and ask nodes of this machine. In: arguments of a command
line. Out: exit status 0, 2 (configuration) or 3 (refused), and for every error that a person can
mend one line that says what, why and what to do. Must NOT import torch, nor anything slow before a
command runs.

Start reading: main.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.cli.init import issue
    from lowcomm.cli.status import finished

__all__ = ["finished", "issue"]

__getattr__ = lazy_exports(
    __name__,
    {
        "init": "issue",
        "status": "finished",
    },
)
