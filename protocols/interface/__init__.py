"""The core's contract: events in, commands out.

In: events.py, one record for each thing that happened (a message, a lost connection, a finished
sum, a deadline). Out: commands.py and transfer_commands.py, one record for each thing that the
shell has to do. The real shell is peers/driver; the simulated one is sims/node. Must NOT contain
decisions: the records are plain data.

Start reading: events.py and commands.py side by side.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.interface import commands, events
    from protocols.interface.commands import (
        Applied,
        AtTheGate,
        Connect,
        Leased,
        Observation,
        Outcome,
        Persist,
        ReducePart,
        Resume,
        Stop,
        Trust,
    )
    from protocols.interface.events import Event, Persisted, PersistFailed, StepReceived

__all__ = [
    "Applied",
    "AtTheGate",
    "Connect",
    "Event",
    "Leased",
    "Observation",
    "Outcome",
    "Persist",
    "PersistFailed",
    "Persisted",
    "ReducePart",
    "Resume",
    "StepReceived",
    "Stop",
    "Trust",
    "commands",
    "events",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "commands": (
            "Applied AtTheGate Connect Leased Observation Outcome Persist ReducePart Resume Stop "
            "Trust"
        ),
        "events": "Event PersistFailed Persisted StepReceived",
    },
)
