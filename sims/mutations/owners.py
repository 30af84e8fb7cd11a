"""Planted bugs in the checks of owners, and in what follows from complaints.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import RoundDecisions
from protocols.rounds import owner_checks, suspicions
from protocols.rounds.owner_checks import OwnerChecks
from protocols.rounds.suspicions import Complaint
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

OWNER_MUTANTS = (
    Mutant(
        "holds-what-it-has-not-checked",
        "A false sum is committed before a peer has compared it.",
        Edit(
            OwnerChecks.passed,
            "(plan.stamp == self.attempt and self.wrong == {})",
            "True",
        ),
    ),
)

OWNER_UNIT_MUTANTS = (
    Mutant(
        "commits-what-a-peer-doubts",
        "Peers with another sample hold the false result, and it becomes the round's.",
        Edit(RoundDecisions._agreed, " or reports.wrong_at(plan)", ""),
        tests=of("leader/decisions"),
    ),
    Mutant(
        "a-liar-owns-the-part-again",
        "Each attempt has the same false result.",
        Edit(
            RoundDecisions._owners,
            "sorted(roster - doubted) or sorted(roster)",
            "sorted(roster)",
        ),
        tests=of("leader/decisions"),
    ),
    Mutant(
        "one-peer-complains-twice-and-removes-another",
        "A single lying peer has an honest one removed.",
        Edit(suspicions.proved, "if one != other and ", "if "),
        tests=of("rounds/suspicions"),
    ),
    Mutant(
        "a-suspect-is-a-witness",
        "A contributor that sends other bytes to the owner has the honest owner removed.",
        Edit(suspicions.proved, " and not {one, other} & (first | second)", ""),
        tests=of("rounds/suspicions"),
    ),
    Mutant(
        "who-complains-is-never-doubted",
        "A peer that complains without reason stops each round of the run.",
        Edit(Complaint.suspects, "self.peers | {self.reporter}", "self.peers"),
        tests=of("rounds/suspicions"),
    ),
    Mutant(
        "a-contribution-is-read-sample-by-sample",
        "A member makes another one send its contribution again and again.",
        Edit(
            OwnerChecks.wanted,
            'if not done.once(peer, round_, "blocks", stamp):',
            "if False:",
        ),
        tests=of("rounds/owner_checks"),
    ),
    Mutant(
        "blocks-beyond-the-part-are-sent",
        "The shell is asked for bytes that no contribution has.",
        Edit(
            owner_checks._is_sample,
            "each.blocks[-1] * block >= borders[each.part + 1] - borders[each.part]",
            "False",
        ),
        tests=of("rounds/owner_checks"),
    ),
    Mutant(
        "an-owner-is-blamed-for-our-own-bytes-only",
        "An owner that falsifies the slice of the peer that checks it is not named alone.",
        Edit(
            OwnerChecks.copies_compared,
            "frozenset((event.owner, *event.differing)) - {self.me}",
            "frozenset((event.owner, *event.differing))",
        ),
        tests=of("rounds/owner_checks"),
    ),
    Mutant(
        "a-late-answer-counts-for-another-attempt",
        "A result is compared with blocks that are not of its sample.",
        Edit(OwnerChecks.blocks_received, "if event.stamp == self.attempt:", "if True:"),
        tests=of("rounds/owner_checks"),
    ),
)
