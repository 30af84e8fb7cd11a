"""Planted bugs in the proof of leadership, and in what peers believe without a proof.

Must NOT run anything (mutants.py).
"""

from protocols.leader.joins import Joins
from protocols.peer.branches import Branches
from protocols.peer.connectivity import Connectivity
from protocols.raft import mandate
from protocols.raft.claims import Claims
from protocols.raft.election import Election
from protocols.raft.log import Log
from protocols.raft.mandate import Electorate
from protocols.raft.node import Raft
from protocols.state import entry_validation
from protocols.state.log_applier import LogApplier
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

LIARS = ("tests/sims/scenarios/test_false_claims.py",)

LEADERSHIP_MUTANTS = (
    Mutant(
        "a-leader-needs-no-votes",
        "A member that sends Append is followed, and commits what it likes.",
        Edit(Raft.is_proved, "not self.proofs.required or", "True or"),
        tests=LIARS,
    ),
    Mutant(
        "a-minority-elects",
        "The vote of a single voter proves that it leads.",
        Edit(Electorate._elects, "2 * len(voted) <= len(self.voters)", "not voted"),
        tests=of("raft/mandate"),
    ),
    Mutant(
        "any-vote-counts-as-signed",
        "A peer makes up the votes of others.",
        Edit(
            Electorate._elects,
            'and verify(self.keys.get(ballot.voter, ""), said, ballot.signature)',
            "",
        ),
        tests=of("raft/mandate"),
    ),
    Mutant(
        "any-peer-changes-the-voters",
        "A peer makes itself the only voter, and elects itself.",
        Edit(Electorate._changes, "not (key and", "not (True or key and"),
        tests=of("raft/mandate"),
    ),
    Mutant(
        "one-of-three-goes-on-alone",
        "A fork, which only one of two voters may begin, proves that any voter leads.",
        Edit(Electorate._changes, "len(self.voters) != 2", "False"),
        tests=of("raft/mandate"),
    ),
    Mutant(
        "the-last-election-is-dropped",
        "The changes of the present leader prove nothing any more: followers that missed many "
        "are lost.",
        Edit(mandate.extended, "gone = 1 if last == 0 else 0", "gone = 0"),
        tests=of("raft/mandate"),
    ),
    Mutant(
        "any-peer-hands-over-to-itself",
        "A voter ends the term of a healthy leader whenever it likes.",
        Edit(Claims.is_heir, "self.proofs.is_signed(leader, wish, vote.signature)", "True"),
        tests=LIARS,
    ),
    Mutant(
        "each-claim-ends-a-term",
        "A voter that claims newer terms makes the leader begin a term with each claim.",
        Edit(Claims.believes, "if now < self._believed_at:", "if False:"),
        tests=of("raft/claims"),
    ),
    Mutant(
        "any-peer-ends-a-branch",
        "A member claims another branch with many tokens, and the leader gives up the run's log.",
        Edit(Branches.look, "if p in left - won", "if p not in won"),
        tests=LIARS,
    ),
    Mutant(
        "a-peer-of-another-branch-is-waited-for",
        "Each round waits for a member to which no peer listens.",
        Edit(Connectivity.handle_message, "if away and led_term is not None", "if False"),
        tests=LIARS,
    ),
    Mutant(
        "invalid-entries-are-acknowledged",
        "One invalid entry of a leader is committed, and no peer can go on from its log.",
        Edit(Log.merge, "if why := self.judge(new):", 'if why := "":'),
        tests=LIARS,
    ),
    Mutant(
        "entries-are-judged-by-the-committed-state",
        "Two entries that contradict each other are acknowledged in one message.",
        Edit(LogApplier._state_before, "if applied.index == index:", "if True:"),
        tests=of("state/log_applier"),
    ),
    Mutant(
        "a-leader-that-lied-is-followed-on",
        "The run stands still: a leader with an invalid log has the answers of a majority.",
        Edit(Raft._append, "self.term_state.refused = peer", "pass"),
        tests=of("state/log_applier"),
    ),
    Mutant(
        "a-term-with-a-lie-never-ends",
        "If the leader is the only voter, its reader never follows it again.",
        Edit(Raft.receive, "if isinstance(message, Append):  # We follow", "if False:  #"),
        tests=of("state/log_applier"),
    ),
    Mutant(
        "a-leader-that-lied-is-elected-again",
        "Its log is the longest one, so all others vote for it.",
        Edit(Election.asked, "fits and not self.claims.distrusts(peer, now)", "fits"),
        tests=of("peer/core"),
    ),
    Mutant(
        "the-chain-of-proofs-may-end",
        "A leader appends an election without votes, and no reader follows a later leader.",
        Edit(LogApplier._is_unproved, "return not", "return False and not"),
        tests=("tests/sims/scenarios/test_forgery.py",),
    ),
    Mutant(
        "any-state-makes-a-member",
        "A joiner becomes a member before it has the state.",
        Edit(entry_validation.unproved_state, "if right and state == right", "if True"),
        tests=of("state/entry_validation"),
    ),
    Mutant(
        "a-false-state-is-not-named",
        "The leader appends a member entry that every reader refuses, and loses its term.",
        Edit(Joins.has_caught_up, "if counts and", "if False and"),
        tests=LIARS,
    ),
)
