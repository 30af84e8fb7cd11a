"""What a simulated peer has: payloads in memory, a disk, and the work of its ranks.

Must NOT decide what is kept or dropped: nodes.py does as the core says.
"""

from dataclasses import dataclass, field

from protocols import commands as c
from protocols.ids import PeerId, Stamp
from protocols.messages import Kept
from protocols.storage import Saved
from sims.models import Value

SliceKey = tuple[int, int, int, PeerId]
"""(round, view, part, contributor), as the real shell has it: not the attempt."""
HICCUPS, HICCUP_S = 0.03, 0.3
"""So often a disk takes so much longer: others have answered before we know our own vote."""
COMPACT_ENTRIES = (8, 32, 512)
"""A seed's log has about a hundred: in some seeds it must become a snapshot again and again."""


@dataclass(slots=True)
class Store:
    """Payloads that the core wants; each is one number."""

    encoded: dict[int, tuple[str, Value]] = field(default_factory=dict[int, tuple[str, Value]])
    """By round: (manifest, value)."""
    slices: dict[SliceKey, Value] = field(default_factory=dict[SliceKey, Value])
    results: dict[tuple[Stamp, int], Value] = field(default_factory=dict[tuple[Stamp, int], Value])
    states: dict[int, Value] = field(default_factory=dict[int, Value])
    """By cut."""

    def drop_slices(self, round_: int) -> None:
        for key in [key for key in self.slices if key[0] <= round_]:
            del self.slices[key]

    def release(self, round_: int) -> None:
        self.drop_slices(round_)
        for old in [old for old in self.encoded if old <= round_]:
            del self.encoded[old]
        for key in [key for key in self.results if key[0].round <= round_]:
            del self.results[key]


@dataclass(slots=True)
class Disk:
    """What survives the death of a peer's process: its log, and its newest checkpoint.

    What was written is there for good once it is synced; of the rest, a crash of the machine may
    lose everything.
    """

    saved: Saved | None = None
    kept: Kept | None = None
    outer: Value = 0
    """The state that `kept` is about."""
    older: tuple[Kept, Value] | None = None
    """The checkpoint before it, and its state."""
    checkpoint_every: int = 1
    """Each node's own choice, in rounds: after a crash, some have more than others."""
    full_until: float = 0.0

    def keep(self, kept: Kept, outer: Value) -> None:
        """A checkpoint is complete."""
        if self.kept is not None:
            self.older = self.kept, self.outer
        self.kept, self.outer = kept, outer

    def tear(self) -> None:
        """The machine dies while the newest checkpoint is written: the one before is the newest
        (I6)."""
        if self.older is not None:
            self.kept, self.outer = self.older

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
        before = [x for x in (old.entries if old else ()) if base < x.index < persist.first]
        entries = (*before, *(x for x in persist.entries if x.index > base))
        for index, entry in enumerate(entries, start=base + 1):
            assert entry.index == index, "the log on the disk has a gap"
        self.saved = Saved(persist.term, persist.vote, snapshot, entries)


@dataclass(slots=True)
class Work:
    """The ranks' parameter, and what of their work no round has counted yet."""

    local: Value = 0
    base: Value = 0
    base_round: int = 0
    first: int = 0
    """Number of the first step that is not counted; steps of a peer are numbered for its life."""
    last: int = 0
    moved: Value = 0
    """Sum of the moves of these steps."""
    samples: list[int] = field(default_factory=list[int])
    """What these steps saw."""
    lineage: int = 0
    """That of the base; 0: before there was one."""
