"""The replicated state machine.

In: log entries in order. Out: the members, joiners and voters, the open round and its plan (owners,
parts, attempt), committed versions, the ledger of samples, spent tokens and revocations. Every peer
that has applied the same entries has the same state. Must NOT use anything but the log: no clock,
no connection, no message. An entry that makes no sense where it stands is refused before it is
applied (entry_validation.py).

Start reading: run_state.py, then round_plan.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.state import checkpoint_progress, gossip_pairs, transitions
    from protocols.state.checkpoint_progress import progress_at, remaining_at
    from protocols.state.entry_validation import cannot_act, may_not_ask
    from protocols.state.gossip_pairs import pairs_of
    from protocols.state.log_applier import LogApplier
    from protocols.state.parts import ELEMENT_BYTES, OWNERS_MAX, cut_parts
    from protocols.state.run_state import RunState
    from protocols.state.step_entries import drawn_at, step_view
    from protocols.state.tokens import (
        ADDRESSES_MAX,
        ANOTHER,
        NO_TERMS,
        PREFIX,
        USES_MAX,
        Token,
        claim,
        decode_token,
        encode_token,
        fingerprint,
        operator_of,
        statement,
    )

__all__ = [
    "ADDRESSES_MAX",
    "ANOTHER",
    "ELEMENT_BYTES",
    "NO_TERMS",
    "OWNERS_MAX",
    "PREFIX",
    "USES_MAX",
    "LogApplier",
    "RunState",
    "Token",
    "cannot_act",
    "checkpoint_progress",
    "claim",
    "cut_parts",
    "decode_token",
    "drawn_at",
    "encode_token",
    "fingerprint",
    "gossip_pairs",
    "may_not_ask",
    "operator_of",
    "pairs_of",
    "progress_at",
    "remaining_at",
    "statement",
    "step_view",
    "transitions",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "checkpoint_progress": "progress_at remaining_at",
        "entry_validation": "cannot_act may_not_ask",
        "gossip_pairs": "pairs_of",
        "log_applier": "LogApplier",
        "parts": "ELEMENT_BYTES OWNERS_MAX cut_parts",
        "run_state": "RunState",
        "step_entries": "drawn_at step_view",
        "tokens": (
            "ADDRESSES_MAX ANOTHER NO_TERMS PREFIX Token USES_MAX claim decode_token encode_token "
            "fingerprint operator_of statement"
        ),
    },
)
