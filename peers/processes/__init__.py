"""Child processes of a daemon.

They are started, watched and ended, and none is left behind. In: command lines and environments.
Out: running processes, their exit status and the last lines of their stderr. Ranks are forked from
a zygote that has imported torch once, or started by the user's own launcher; every child dies with
its parent. Must NOT know what a child is for, nor speak with ranks.

Start reading: supervisor.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.processes.adopted import (
        HANDOVER,
        TOKEN_VARIABLE,
        AdoptedProgram,
        adopted_program,
    )
    from peers.processes.adopted_spawner import AdoptedSpawner
    from peers.processes.cgroups import available_memory_bytes
    from peers.processes.exit_status import SIGNALLED, shell_status
    from peers.processes.processes import Child, dying_with_us, own_module, start_child
    from peers.processes.supervisor import CommandSpawner, Spawner, ZygoteSpawner

__all__ = [
    "HANDOVER",
    "SIGNALLED",
    "TOKEN_VARIABLE",
    "AdoptedProgram",
    "AdoptedSpawner",
    "Child",
    "CommandSpawner",
    "Spawner",
    "ZygoteSpawner",
    "adopted_program",
    "available_memory_bytes",
    "dying_with_us",
    "own_module",
    "shell_status",
    "start_child",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "adopted": "HANDOVER TOKEN_VARIABLE AdoptedProgram adopted_program",
        "adopted_spawner": "AdoptedSpawner",
        "cgroups": "available_memory_bytes",
        "exit_status": "SIGNALLED shell_status",
        "processes": "Child dying_with_us own_module start_child",
        "supervisor": "CommandSpawner Spawner ZygoteSpawner",
    },
)
