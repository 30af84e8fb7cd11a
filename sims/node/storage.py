"""The storage of a simulated peer: payloads in memory, and a disk.

Must NOT decide which data is kept or dropped: node.py follows the core.
"""

from dataclasses import dataclass, field

from peers.exchange import SliceKey
from protocols.interface import commands as c
from protocols.messages import Kept, Saved
from protocols.types import PeerId, Stamp
from sims.node.toy_model import Value

HICCUPS, HICCUP_S = 0.03, 0.3
"""Probability that a write is delayed, and by how many seconds: other voters have answered before
our own vote is on the disk."""
SLOW_SYNC_S = 4.0
"""Seconds that a slow disk adds to each write: longer than an election takes."""
COMPACT_ENTRIES = (8, 32, 512)
"""Log lengths, in entries, after which a log is compacted into a snapshot. A seed's log has about
100 entries, so in some seeds that happens again and again."""


@dataclass(slots=True)
class Store:
    """Payloads that the core still needs; each is one number."""

    encoded: dict[tuple[int, int], tuple[str, Value]] = field(
        default_factory=dict[tuple[int, int], tuple[str, Value]]
    )
    """By (fragment, round): (manifest, value)."""
    slices: dict[SliceKey, Value] = field(default_factory=dict[SliceKey, Value])
    results: dict[tuple[Stamp, int], Value] = field(default_factory=dict[tuple[Stamp, int], Value])

    def drop_slices(self, fragment: int, round_: int) -> None:
        ended = [x for x in self.slices if x.ends_with(fragment, round_, released=False)]
        for key in ended:
            del self.slices[key]

    def keep(self, lineage: int) -> None:
        """Drop payloads of all other lineages, and this peer's own encoded contributions."""
        self.encoded.clear()
        self.slices = {key: value for key, value in self.slices.items() if key.lineage == lineage}
        self.results = {x: value for x, value in self.results.items() if x[0].lineage == lineage}

    def release(self, fragment: int, round_: int) -> None:
        self.drop_slices(fragment, round_)
        for old in [old for old in self.encoded if old[0] == fragment and old[1] <= round_]:
            del self.encoded[old]
        for key in [x for x in self.results if x[0].fragment == fragment and x[0].round <= round_]:
            del self.results[key]


@dataclass(slots=True)
class SimulatedDisk:
    """The data that survives the end of a peer's process: its log and its newest checkpoint.

    Synced data is permanent. A crash of the machine may lose all data that was written but not
    synced.
    """

    saved: Saved | None = None
    kept: Kept | None = None
    outers: tuple[Value, ...] = ()
    """The state of the checkpoint `kept`, by fragment."""
    older: tuple[Kept, tuple[Value, ...]] | None = None
    """The previous checkpoint and its state."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints. Each node has its own value, so after a crash some nodes have
    newer checkpoints than others."""
    full_until: float = 0.0
    slow_until: float = 0.0
    """Until this time (virtual seconds), each write takes longer than an election."""
    hung_until: float = 0.0
    """No write returns before this time (virtual seconds)."""
    certified: bool = False
    """The peer is admitted, and knows it."""
    trusts: set[PeerId] = field(default_factory=set[PeerId])
    """The peers with certificates that this peer trusts."""

    def keep_checkpoint(self, kept: Kept, outers: tuple[Value, ...]) -> None:
        """Make a complete checkpoint the newest one."""
        if self.kept is not None:
            self.older = self.kept, self.outers
        self.kept, self.outers = kept, outers

    def tear(self) -> None:
        """Lose the newest checkpoint: the machine died while it was written, so the previous one is
        the newest (I6)."""
        if self.older is not None:
            self.kept, self.outers = self.older

    def holds(self, index: int, term: int | None) -> bool:
        """True if the entry of this index and term is on the disk for good, or covered by its
        snapshot. `term` None: an entry of any term."""
        saved = self.saved
        base = saved.snapshot.index if saved is not None and saved.snapshot is not None else 0
        if saved is None or index > base + len(saved.entries):
            return False
        return index <= base or term in (None, saved.entries[index - base - 1].term)

    def write(self, persist: c.Persist) -> None:
        old = self.saved
        snapshot = persist.snapshot or (old.snapshot if old else None)
        base = snapshot.index if snapshot else 0
        held = old.entries if old else ()
        first = held[0].index if held else 1
        before = held[max(base + 1 - first, 0) : max(persist.first - first, 0)]
        fresh = tuple(x for x in persist.entries if x.index > base)
        for index, entry in enumerate(fresh, start=base + 1 + len(before)):
            assert entry.index == index, "the log on the disk has a gap"
        self.saved = Saved(persist.term, persist.vote, snapshot, (*before, *fresh))
