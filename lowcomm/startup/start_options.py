"""The options with which a daemon is started. Made before it listens, so this imports little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peers.fault_injection import InjectedFault, Lie
from peers.processes import AdoptedProgram
from protocols.state import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How this daemon comes into its run."""

    kind: Literal["new", "join", "again"]
    """Found a run, join one, or go on in one after a restart."""
    address: str = ""
    """The address of any peer of the run, HOST:PORT; "": unknown, or a founder. A restarted node
    knows more addresses from its log."""
    token: Token | None = None
    """The token to join with."""
    run_directory: Path | None = None
    """The directory in which `lowcomm init` made the root key of a new run."""
    command: tuple[str, ...] = ()
    """Command line of the user's own training program; empty: the built-in one."""
    adopted: AdoptedProgram | None = None
    """The program of this command line, if it has started this daemon itself."""
    fault: InjectedFault | Lie | None = None

    @property
    def contacts(self) -> tuple[str, ...]:
        """All known addresses of peers of the run."""
        return contacts(self.address, self.token)


def contacts(address: str, token: Token | None) -> tuple[str, ...]:
    """This address, and the others of the token."""
    known = (address, *(token.addresses if token is not None else ()))
    return tuple(dict.fromkeys(each for each in known if each))
