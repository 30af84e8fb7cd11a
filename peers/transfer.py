"""The state of a cut on its way to us. Must NOT look into it, nor decide who gives it."""

from dataclasses import dataclass, field

from peers.work import Bytes
from protocols.ids import PeerId, Version


@dataclass(slots=True)
class Transfer:
    """The state of a cut on its way to us."""

    donor: PeerId
    cut_index: int
    versions: tuple[Version, ...]
    since: float
    """When we read the cut."""
    states: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    """By fragment: arrived, and not adopted yet."""
    adopted: set[int] = field(default_factory=set[int])
    size_bytes: int = 0
    """Of what is adopted."""

    def lacks(self, peer: PeerId, cut_index: int, fragment: int) -> bool:
        """Only the donor of this very cut is listened to, and once for each fragment."""
        if (peer, cut_index) != (self.donor, self.cut_index):
            return False
        wanted = any(version.fragment == fragment for version in self.versions)
        return wanted and fragment not in self.states and fragment not in self.adopted

    def adopt(self, fragment: int) -> Bytes:
        """Hand out an arrived state, once."""
        state = self.states.pop(fragment)
        self.adopted.add(fragment)
        self.size_bytes += memoryview(state).nbytes
        return state

    @property
    def complete(self) -> bool:
        return len(self.adopted) == len(self.versions)
