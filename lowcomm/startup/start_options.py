"""How a person wants a daemon to come into a run: made before it listens, so it imports little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peers.fault_injection import Fault
from protocols.state.tokens import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How this daemon comes into the run."""

    kind: Literal["new", "join", "again"]
    address: str = ""
    """Of any peer of the run, to join; a peer that was in it knows others, too."""
    token: Token | None = None
    """With which to join."""
    run_directory: Path | None = None
    """Where `lowcomm init` made the authority of a new run."""
    command: tuple[str, ...] = ()
    """The user's own training program; empty is lowcomm's worker."""
    fault: Fault | None = None
