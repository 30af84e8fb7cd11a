"""Bugs to plant into what must come in time and no earlier: votes, hold-down, old work, Restores.

Must NOT run anything (mutants.py).
"""

from protocols.parts import Parts
from protocols.promises import Promises
from protocols.rounds import FragmentRounds
from protocols.standing import Standing
from protocols.votes import Votes
from sims.planting import Edit, Mutant

BOUND_MUTANTS = (
    Mutant(
        "a-broken-disk-is-not-reported",
        "A voter that cannot write keeps its vote: one failure more, and nothing is decided.",
        Edit(
            Parts._report,
            "self.standing.news(self.raft.disk.why, hears)",
            'self.standing.news("", hears)',
        ),
    ),
    Mutant(
        "a-broken-disk-keeps-its-vote",
        "The leader hears of it and does nothing.",
        Edit(
            Votes.next_voter,
            "if peer != self.me and (why := self.accounts.broken(peer)):",
            'if (why := ""):',
        ),
    ),
    Mutant(
        "a-mended-disk-is-not-reported",
        "A peer that can write again gets no vote in this term.",
        Edit(Standing.news, "if broken or Durable in self._told:", "if broken:"),
    ),
    Mutant(
        "a-full-disk-is-tried-late",
        "There is room again, and the peer promises nothing for a minute.",
        Edit(Promises.failed, "now + RETRY_S", "now + 30 * RETRY_S"),
    ),
    Mutant(
        "old-work-is-contributed",
        "Ranks that were away for long contribute what they did on a model of long ago.",
        Edit(
            FragmentRounds.contribute,
            "stale = self.version - self.base > STALENESS_ROUNDS_MAX",
            "stale = False",
        ),
    ),
    Mutant(
        "old-work-moves-along",
        "A transfer brings a state of many rounds later, and what was done before it is kept.",
        Edit(
            FragmentRounds._resume,
            "if self.version - self.base > STALENESS_ROUNDS_MAX:",
            "if False:",
        ),
    ),
)
