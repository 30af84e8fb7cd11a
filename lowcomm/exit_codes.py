"""How a program of ours ends, as the shell that started it sees it.

Must NOT import anything heavy: the command line does so before it knows the command.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from peers.processes.exit_status import SIGNALLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.interface.commands import Outcome

EXIT_CONFIG = 2
"""What somebody typed cannot work."""
EXIT_REFUSED = 3
EXIT_FAILED = 4
"""Anything else that stopped us."""
EXIT_CODES: Mapping[Outcome, int] = MappingProxyType(
    {"finished": 0, "left": 0, "dropped": 0, "refused": EXIT_REFUSED, "failed": EXIT_FAILED}
)
"""Of a peer that no signal ended. One whose branch was dropped joins anew in the same process."""
EXIT_INTERRUPTED, EXIT_TERMINATED = SIGNALLED + 2, SIGNALLED + 15
"""By SIGINT and by SIGTERM, although the program wound up and said so to others."""
LEAVE_TIMEOUT_S = 1.5
"""For the leader to write down that we leave."""


def exit_code_of(outcome: Outcome, *, signalled: int) -> int:
    """Of a peer; `signalled` is the signal because of which it left, 0: none."""
    if outcome == "left" and signalled:
        return SIGNALLED + signalled
    return EXIT_CODES[outcome]
