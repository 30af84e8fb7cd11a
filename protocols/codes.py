"""The number of each type on the wire and in the log: never given to another one.

Must NOT know what a type looks like (shapes.py).
"""

from collections.abc import Mapping
from typing import get_args

from protocols import entries as e
from protocols import messages as m

MESSAGES: Mapping[int, type] = {
    1: m.Hello,
    2: m.BulkKeys,
    3: m.Refused,
    4: m.Heartbeat,
    5: m.ReadLog,
    6: m.Append,
    7: m.Join,
    8: m.CaughtUp,
    9: m.Able,
    10: m.Unable,
    11: m.Ready,
    12: m.Hold,
    13: m.Have,
    14: m.Waiting,
    15: m.Fetch,
    16: m.Leave,
    17: m.FetchState,
    18: m.NoState,
    19: m.Vote,
    20: m.Voted,
    21: m.Appended,
    22: m.Install,
    23: m.HandOver,
    24: m.Told,
    25: m.Kept,
    26: m.Durable,
    27: m.Seek,
    28: m.Leads,
    29: m.OnBranch,
    30: m.Witnessing,
    31: m.WantBulk,
    35: m.Hurry,
    36: m.Here,
    37: m.Relay,
    38: m.Via,
    39: m.Relayed,
    40: m.Passed,
    41: m.Wants,
    42: m.Stepped,
    43: m.Stopped,
    44: m.FetchSteps,
    45: m.Admit,
    46: m.Admitted,
    47: m.NotAdmitted,
    48: m.HandOn,
    49: m.Decided,
    50: m.AskKey,
    51: m.AuthorityKey,
    53: m.FetchLeaves,
    54: m.Leaves,
    55: m.CutRoots,
    60: m.WantTunnel,
    61: m.TunnelTicket,
    62: m.NoTunnel,
    63: m.Unlinked,
    64: m.Revoke,
    32: m.ContributionChunk,
    33: m.ResultChunk,
    34: m.StateChunk,
    52: m.StepChunk,
}
ENTRIES: Mapping[int, type] = {
    1: e.Run,
    2: e.Restore,
    3: e.Cut,
    4: e.Member,
    5: e.Left,
    6: e.Lost,
    7: e.View,
    8: e.Attempt,
    9: e.Commit,
    10: e.Elected,
    11: e.Voter,
    12: e.Witness,
    13: e.Dropped,
    14: e.Lease,
    15: e.StepCommit,
    16: e.Halt,
    17: e.Close,
    18: e.TokenSpent,
    19: e.Revoked,
    20: e.Roots,
}
REPORTS = {code: cls for code, cls in MESSAGES.items() if cls in get_args(m.Reported)}
CODES: Mapping[type, int] = {cls: code for code, cls in MESSAGES.items()}
REPORT_CODES: Mapping[type, int] = {cls: code for code, cls in REPORTS.items()}
ENTRY_CODES: Mapping[type, int] = {cls: code for code, cls in ENTRIES.items()}
