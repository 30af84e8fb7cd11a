"""Planted bugs in the transfer of a state from several donors to a joiner.

Must NOT run anything (mutants.py).
"""

from protocols.transfer.donor import StateDonor
from protocols.transfer.receiver import StateReceiver
from protocols.transfer.state_roots import RootAgreement
from sims.mutations.patch import Edit, Mutant

TRANSFER_MUTANTS = (
    Mutant(
        "believes-any-cell",
        "A lying donor's cell becomes part of a peer's own state.",
        Edit(StateReceiver.cell_received, "event.digest != self._leaf(fragment, cell)", "False"),
    ),
    Mutant(
        "asks-a-liar-again",
        "The next cell of a lying donor is wrong too, and takes an honest donor's time.",
        Edit(StateReceiver.advance, " and not x.why_not", ""),
    ),
    Mutant(
        "forgets-what-a-lost-donor-owed",
        "No other donor is asked for those cells: the joiner waits until the transfer times out.",
        Edit(StateReceiver.disconnected, "self._take_back(giver)", "giver.asked = []"),
    ),
    Mutant(
        "waits-for-a-donor-that-hangs",
        "The cells of a donor that hangs arrive only once it continues, if ever.",
        Edit(
            StateReceiver.advance,
            "giver.asked and now >= giver.since + giver.patience_s",
            "False",
        ),
    ),
    Mutant(
        "one-donor-names-the-root",
        "A donor's own report is all that its cells are compared with.",
        Edit(RootAgreement._agreed, "needed = min(WORDS_NEEDED, len(donors))", "needed = 1"),
    ),
    Mutant(
        "tells-the-tree-of-a-damaged-state",
        "The hash tree of a donor with damaged memory counts as valid.",
        Edit(
            StateDonor.hashed,
            "event.state_digest != owed.versions[event.fragment].state_digest",
            "False",
        ),
    ),
    Mutant(
        "keeps-cells-of-an-earlier-cut",
        "Part of the joiner's state is rounds behind the rest.",
        Edit(StateReceiver._lacks, "held[cell] != self._leaf(fragment, cell)", "False"),
    ),
)
