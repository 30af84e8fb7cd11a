"""Exit codes of the project's programs.

Must NOT import any slow module: the command line imports this one before it knows the command.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from peers.processes import SIGNALLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.interface import Outcome

EXIT_CONFIG = 2
"""A command line or configuration that cannot work."""
EXIT_REFUSED = 3
EXIT_FAILED = 4
"""Every other error."""
EXIT_CODES: Mapping[Outcome, int] = MappingProxyType(
    {"finished": 0, "left": 0, "dropped": 0, "refused": EXIT_REFUSED, "failed": EXIT_FAILED}
)
"""Exit codes of a peer that no signal ended. If its branch was dropped, it joins again in the same
process."""
EXIT_INTERRUPTED, EXIT_TERMINATED = SIGNALLED + 2, SIGNALLED + 15
"""Exit codes after SIGINT and SIGTERM, even if the program left the run in order."""
LEAVE_TIMEOUT_S = 1.5
"""Seconds to wait until the leader has logged that this peer leaves."""


def exit_code_of(outcome: Outcome, *, signalled: int) -> int:
    """The exit code of a peer. `signalled`: the number of the signal that made it leave; 0:
    none."""
    if outcome == "left" and signalled:
        return SIGNALLED + signalled
    return EXIT_CODES[outcome]
