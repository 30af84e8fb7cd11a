"""Messages and memory shared by a daemon and its ranks.

In: records of messages.py and step_orders.py, encoded as strict msgpack. Out: the same records at
the other end of a Unix socket; shared memory for contributions and results (shared_memory.py); a
ZeroMQ bus for commands such as `lowcomm status`. Must NOT import torch, and must not decide what a
message leads to.

Start reading: messages.py, then rank_client.py (a rank's end) and daemon_socket.py (the daemon's).
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.ipc.command_bus import (
        Asked,
        Bus,
        FindSubject,
        IssueToken,
        ListActs,
        ListTokens,
        MakeCheckpoint,
        PrepareAct,
        Question,
        Revoke,
        Status,
        Steer,
        StopPeer,
        ask_daemon,
        serve,
    )
    from peers.ipc.messages import NONE, Answer, Attached, Boundary, Result, TensorPlace
    from peers.ipc.msgpack_records import LinkError
    from peers.ipc.parts import Runs, runs_of
    from peers.ipc.rank_client import RankClient
    from peers.ipc.shared_memory import COPIES, MOVE, Slots, SlotsShape
    from peers.ipc.step_orders import Order, StepSlots, following, step_shape

__all__ = [
    "COPIES",
    "MOVE",
    "NONE",
    "Answer",
    "Asked",
    "Attached",
    "Boundary",
    "Bus",
    "FindSubject",
    "LinkError",
    "IssueToken",
    "ListActs",
    "ListTokens",
    "MakeCheckpoint",
    "Order",
    "PrepareAct",
    "Question",
    "RankClient",
    "Result",
    "Revoke",
    "Runs",
    "Slots",
    "SlotsShape",
    "Status",
    "Steer",
    "StepSlots",
    "StopPeer",
    "TensorPlace",
    "ask_daemon",
    "following",
    "runs_of",
    "serve",
    "step_shape",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "command_bus": (
            "Asked Bus FindSubject IssueToken ListActs ListTokens MakeCheckpoint PrepareAct "
            "Question Revoke Status Steer StopPeer ask_daemon serve"
        ),
        "messages": "Answer Attached Boundary NONE Result TensorPlace",
        "msgpack_records": "LinkError",
        "parts": "Runs runs_of",
        "rank_client": "RankClient",
        "shared_memory": "COPIES MOVE Slots SlotsShape",
        "step_orders": "Order StepSlots following step_shape",
    },
)
