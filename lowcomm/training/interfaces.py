"""Interface of a rank's parameters to its rounds. Must NOT import torch."""

from typing import Literal, Protocol

Kind = Literal["full", "delta"]


class RoundState(Protocol):
    """This rank's parameters. A buffer is a whole fragment, fp32 as bytes; each rank writes and
    reads its own elements."""

    def write(self, fragment: int, place: memoryview) -> None:
        """Write the parameters to `place`, except those that another rank of the node writes. They
        may still be on their way when this returns: see RoundRank's `when_written`."""
        ...

    def copy(self, fragment: int, place: memoryview) -> None:
        """Write all parameters that this rank holds to `place`, which only this rank uses."""
        ...

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        """Continue with these values: "full" replaces the parameters but for the share `mixing` of
        them, "delta" is added to them."""
        ...

    def snapshot(self, directory: str) -> None:
        """Save to `directory` the state that a restart needs beyond the parameters, and tell the
        daemon when it is saved, unless that fails."""
        ...
