"""What a simulated peer has: payloads in memory, and a disk.

Must NOT decide what is kept or dropped: node.py does as the core says.
"""

from dataclasses import dataclass, field

from peers.exchange.payload_keys import SliceKey
from protocols.interface import commands as c
from protocols.messages.peer import Kept
from protocols.messages.persisted import Saved
from protocols.types.ids import Stamp
from sims.node.toy_model import Value

HICCUPS, HICCUP_S = 0.03, 0.3
"""So often a disk takes so much longer: others have answered before we know our own vote."""
SLOW_SYNC_S = 4.0
"""What a slow disk takes more for each ticket: longer than an election takes."""
COMPACT_ENTRIES = (8, 32, 512)
"""A seed's log has about a hundred: in some seeds it must become a snapshot again and again."""


@dataclass(slots=True)
class Store:
    """Payloads that the core wants; each is one number."""

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
        """What is of another lineage is of no round any more; nor are our own contributions."""
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
class Disk:
    """What survives the death of a peer's process: its log, and its newest checkpoint.

    What was written is there for good once it is synced; of the rest, a crash of the machine may
    lose everything.
    """

    saved: Saved | None = None
    kept: Kept | None = None
    outers: tuple[Value, ...] = ()
    """The state that `kept` is about, by fragment."""
    older: tuple[Kept, tuple[Value, ...]] | None = None
    """The checkpoint before it, and its state."""
    checkpoint_every: int = 1
    """Each node's own choice, in rounds: after a crash, some have more than others."""
    full_until: float = 0.0
    slow_until: float = 0.0
    """Until then, each ticket takes longer than an election."""
    certified: bool = False
    """It has its peer's certificate."""
    has_key: bool = False
    """And the authority's key."""

    def keep(self, kept: Kept, outers: tuple[Value, ...]) -> None:
        """A checkpoint is complete."""
        if self.kept is not None:
            self.older = self.kept, self.outers
        self.kept, self.outers = kept, outers

    def tear(self) -> None:
        """The machine dies while the newest checkpoint is written: the one before is the newest
        (I6)."""
        if self.older is not None:
            self.kept, self.outers = self.older

    def holds(self, index: int, term: int | None) -> bool:
        """Is the entry of this index and term there for good, or in a snapshot? `term` None: of
        any."""
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
