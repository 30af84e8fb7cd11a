"""How a program of ours ends, as the shell that started it sees it.

Must NOT import anything heavy: the command line does so before it knows the command.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.commands import Outcome

EXIT_CONFIG = 2
"""What somebody typed cannot work."""
EXIT_REFUSED = 3
EXIT_FAILED = 4
"""Anything else that stopped us."""
EXIT_CODES: Mapping[Outcome, int] = MappingProxyType(
    {"finished": 0, "left": 0, "dropped": 0, "refused": EXIT_REFUSED, "failed": EXIT_FAILED}
)
"""Of a peer. One whose branch was dropped joins anew in the same process."""
LEAVE_TIMEOUT_S = 1.5
"""For the leader to write down that we leave."""
