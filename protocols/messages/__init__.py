"""Records that travel, stand in the log, or are stored.

In: identifiers and sample ranges (types). Out: frozen records without behaviour. log_entries.py has
the entries of the replicated log, peer.py the control messages and the chunks of bulk payloads,
persisted.py what a peer must find again after a crash, snapshot.py what a snapshot of the log
holds. Must NOT encode or check anything (protocols/wire does), nor decide what a record leads to.

Start reading: log_entries.py, since everything that all peers agree on is an entry of the log.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.messages import log_entries, peer, step_progress
    from protocols.messages.log_entries import (
        Restore,
        Revocation,
        Revoked,
        Run,
        SignedAct,
        Steered,
        TokenIssued,
        TokenRevoked,
        TokenSpent,
        TokenTerms,
    )
    from protocols.messages.peer import (
        Admit,
        Admitted,
        Append,
        Appended,
        BulkKeys,
        Chunk,
        ContributionChunk,
        ContributionOffered,
        Control,
        Disconnecting,
        Hello,
        Hold,
        Install,
        Kept,
        Message,
        NotAdmitted,
        NoTunnel,
        Padding,
        PieceChunk,
        Refused,
        Relay,
        ResultChunk,
        StateChunk,
        StepChunk,
        StepsHalted,
        TunnelTicket,
        WantBulk,
        WantTunnel,
    )
    from protocols.messages.persisted import Saved, Snapshot
    from protocols.messages.step_progress import TENTATIVE_COMMITS

__all__ = [
    "Admit",
    "Admitted",
    "Append",
    "Appended",
    "BulkKeys",
    "Chunk",
    "ContributionChunk",
    "Control",
    "Disconnecting",
    "Hello",
    "Hold",
    "Install",
    "Kept",
    "Message",
    "NoTunnel",
    "NotAdmitted",
    "Padding",
    "PieceChunk",
    "ContributionOffered",
    "Refused",
    "Relay",
    "Restore",
    "ResultChunk",
    "Revocation",
    "Revoked",
    "Run",
    "Saved",
    "Snapshot",
    "StateChunk",
    "StepChunk",
    "StepsHalted",
    "TENTATIVE_COMMITS",
    "SignedAct",
    "Steered",
    "TokenIssued",
    "TokenRevoked",
    "TokenSpent",
    "TokenTerms",
    "TunnelTicket",
    "WantBulk",
    "WantTunnel",
    "log_entries",
    "peer",
    "step_progress",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "log_entries": (
            "Restore Revocation Revoked Run SignedAct Steered TokenIssued TokenRevoked TokenSpent "
            "TokenTerms"
        ),
        "peer": (
            "Admit Admitted Append Appended BulkKeys Chunk ContributionChunk ContributionOffered "
            "Control Disconnecting Hello Hold Install Kept Message NoTunnel NotAdmitted Padding "
            "PieceChunk Refused Relay ResultChunk StateChunk StepChunk StepsHalted TunnelTicket "
            "WantBulk WantTunnel"
        ),
        "persisted": "Saved Snapshot",
        "step_progress": "TENTATIVE_COMMITS",
    },
)
