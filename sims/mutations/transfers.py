"""Bugs to plant where a state goes from several donors to who joins.

Must NOT run anything (mutants.py).
"""

from protocols.transfer.donor import Giving
from protocols.transfer.receiver import Intake
from protocols.transfer.state_roots import Rooting
from sims.mutations.patch import Edit, Mutant

TRANSFER_MUTANTS = (
    Mutant(
        "believes-any-cell",
        "A lying donor's cell becomes part of a peer's own state.",
        Edit(Intake.cell_received, "event.digest != self._leaf(fragment, cell)", "False"),
    ),
    Mutant(
        "asks-a-liar-again",
        "What it sends next is a lie as well, and takes the time of an honest one.",
        Edit(Intake.advance, " and not x.why_not", ""),
    ),
    Mutant(
        "forgets-what-a-lost-donor-owed",
        "Nobody else is asked for it: the joiner waits until the transfer is late.",
        Edit(Intake.disconnected, "self._take_back(giver)", "giver.asked = []"),
    ),
    Mutant(
        "waits-for-a-donor-that-hangs",
        "What it owes comes when it goes on again, if it does.",
        Edit(
            Intake.advance,
            "giver.asked and now >= giver.since + giver.patience_s",
            "False",
        ),
    ),
    Mutant(
        "one-donor-names-the-root",
        "What it says of the state is all that its own cells are compared with.",
        Edit(Rooting._agreed, "needed = min(WORDS_NEEDED, len(donors))", "needed = 1"),
    ),
    Mutant(
        "tells-the-tree-of-a-damaged-state",
        "A donor whose memory is damaged is as good a witness as any.",
        Edit(
            Giving.hashed,
            "event.state_digest != owed.versions[event.fragment].state_digest",
            "False",
        ),
    ),
    Mutant(
        "keeps-cells-of-an-earlier-cut",
        "Part of the joiner's state is rounds behind the rest.",
        Edit(Intake._lacks, "held[cell] != self._leaf(fragment, cell)", "False"),
    ),
)
