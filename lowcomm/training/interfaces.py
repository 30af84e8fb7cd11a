"""What a rank of a run of rounds holds, as far as rounds are about it. Must NOT import torch."""

from typing import Literal, Protocol

Kind = Literal["full", "delta"]


class RoundState(Protocol):
    """This rank's parameters. Buffers are a whole fragment, fp32 as bytes: each rank writes and
    reads its own elements."""

    def write(self, fragment: int, place: memoryview) -> None:
        """Write the parameters there, as far as no other rank of the node writes them."""
        ...

    def copy(self, fragment: int, place: memoryview) -> None:
        """Write all that this rank holds there, memory of its own."""
        ...

    def take(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        """Go on from these: "full" replaces the parameters but for the part `mixing` of them,
        "delta" is added to them."""
        ...

    def snapshot(self, directory: str) -> bool:
        """Keep there what a restart needs beyond the parameters. False: it could not be kept."""
        ...
