"""The leader's agreement on the hash trees of a cut's state: two of its donors must report the same
roots.

The roots then go into the log, and a joiner compares each cell with them. Must NOT look into a
state, nor choose donors (leader/recovery.py).
"""

from collections import Counter
from collections.abc import Set

from protocols.messages.log_entries import Cut, Roots
from protocols.messages.peer import CutRoots
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId

WORDS_NEEDED = 2
"""Equal reports that are needed; of a single donor one is enough."""


def first_to_hash(cut: Cut) -> tuple[PeerId, ...]:
    """The donors that hash at once: as many as must agree. Others hash if there are no roots in
    time, or if they are asked for leaves."""
    return cut.donors[:WORDS_NEEDED]


class RootAgreement:
    """The reports of donors, as the leader remembers them."""

    def __init__(self, me: PeerId, run_state: RunState) -> None:
        self.me = me
        self.run_state = run_state
        self._said: dict[tuple[PeerId, int], dict[PeerId, tuple[str, ...]]] = {}
        """By (joiner, log index of its cut): the roots that each donor reported."""

    def add_roots(self, donor: PeerId, report: CutRoots) -> None:
        """A donor reports the roots of a cut, or that it cannot give the state."""
        index, cut = self.run_state.cut_of(report.peer)
        if cut is not None and index == report.index and donor in cut.donors and not cut.roots:
            self._said.setdefault((report.peer, index), {})[donor] = report.roots

    def next_entry(self, asking: Set[PeerId]) -> Roots | None:
        """The next Roots entry for the log; None if there is none. `asking`: peers that need a
        state themselves."""
        members = self.run_state.members
        for (peer, index), said in list(self._said.items()):
            known, cut = self.run_state.cut_of(peer)
            if cut is None or known != index or cut.roots:
                del self._said[peer, index]
                continue
            # A donor that asks for a state may have no copy; but it has hashed a copy that it
            # reports.
            donors = set(cut.donors) & members.keys() - (asking - said.keys())
            donors -= {donor for donor, roots in said.items() if not roots}
            roots = self._agreed(donors, said)
            if len(roots) == self.run_state.fragments and all(roots):
                del self._said[peer, index]
                return Roots(peer, index, roots)
        return None

    def _agreed(self, donors: set[PeerId], said: dict[PeerId, tuple[str, ...]]) -> tuple[str, ...]:
        """The roots that two donors report, or the only donor; () if there are none yet."""
        needed = min(WORDS_NEEDED, len(donors))
        counts = Counter(roots for donor, roots in said.items() if donor in donors)
        roots, votes = max(counts.items(), key=lambda one: (one[1], one[0]), default=((), 0))
        if votes >= needed:
            return roots
        # If all differ, the leader's own report decides, as with states.
        return said[self.me] if donors <= said.keys() and self.me in donors else ()
