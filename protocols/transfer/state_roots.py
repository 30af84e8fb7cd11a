"""What the trees of a cut's state are: two of its donors say the same, and it is written down.

A joiner compares what it gets with that, whoever sends it. Must NOT look into a state, nor decide
who gives one (leader/joins.py).
"""

from collections import Counter
from collections.abc import Set

from protocols.messages.log_entries import Cut, Roots
from protocols.messages.peer import CutRoots
from protocols.state.run_state import Membership
from protocols.types.ids import PeerId

WORDS_NEEDED = 2
"""Equal ones. Of an only donor one has to do."""


def first_to_hash(cut: Cut) -> tuple[PeerId, ...]:
    """As many donors as have to agree; the others hash when there are no roots in time, or when
    somebody asks them for leaves."""
    return cut.donors[:WORDS_NEEDED]


class Rooting:
    """A leader's memory of what donors said."""

    def __init__(self, me: PeerId, members: Membership) -> None:
        self.me = me
        self.members = members
        self._said: dict[tuple[PeerId, int], dict[PeerId, tuple[str, ...]]] = {}
        """By (joiner, log index of its cut), by donor."""

    def take(self, donor: PeerId, report: CutRoots) -> None:
        """A donor has copied and hashed what a cut names, or cannot."""
        index, cut = self.members.cuts.get(report.peer, (0, None))
        if cut is not None and index == report.index and donor in cut.donors and not cut.roots:
            self._said.setdefault((report.peer, index), {})[donor] = report.roots

    def next_entry(self, asking: Set[PeerId]) -> Roots | None:
        """The next thing to put into the log, or None. `asking`: who wants a state itself."""
        for (peer, index), said in list(self._said.items()):
            known, cut = self.members.cuts.get(peer, (0, None))
            if cut is None or known != index or cut.roots:
                del self._said[peer, index]
                continue
            # Who asks may have no copy to speak of; but what it says of one, it has looked at.
            donors = set(cut.donors) & self.members.members.keys() - (asking - said.keys())
            donors -= {donor for donor, roots in said.items() if not roots}
            roots = self._agreed(donors, said)
            if len(roots) == self.members.fragments and all(roots):
                del self._said[peer, index]
                return Roots(peer, index, roots)
        return None

    def _agreed(self, donors: set[PeerId], said: dict[PeerId, tuple[str, ...]]) -> tuple[str, ...]:
        """What two of the donors say, or the only one; (): not yet, or never."""
        needed = min(WORDS_NEEDED, len(donors))
        counts = Counter(roots for donor, roots in said.items() if donor in donors)
        roots, votes = max(counts.items(), key=lambda one: (one[1], one[0]), default=((), 0))
        if votes >= needed:
            return roots
        # Where all differ, it is as with states: what we hold ourselves decides.
        return said[self.me] if donors <= said.keys() and self.me in donors else ()
