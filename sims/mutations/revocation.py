"""Planted bugs in revocations: taking the vote, excluding the peer, and the effects that remain.

The sweep catches those of REVOCATION_MUTANTS. Each of REVOCATION_UNIT_MUTANTS breaks the unit test
named above it, since random seeds seldom produce its situation. Must NOT run anything (mutants.py).
"""

from protocols.acts import authority, statements
from protocols.leader.decisions import Leader
from protocols.leader.term import LeadershipTerm
from protocols.leader.voters import Voters
from protocols.links import handshake
from protocols.peer.certificates import Certificates
from protocols.peer.connectivity import Connectivity
from protocols.peer.core import PeerCore
from protocols.peer.revoked_peers import RevokedPeers
from protocols.state import entry_validation, transitions
from protocols.state.tokens import SpentTokens
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

MAJORITY = "if 2 * (len(here) + fresh) > len(stay) + fresh:"
ALLOWED = "one.force or (stays and _is_majority(reached, rest))"

REVOCATION_MUTANTS = (
    Mutant(
        "revokes-a-peer-that-votes",
        "The revoked peer is excluded, but the entry that takes the next vote needs its answer.",
        Edit(Voters.next_act, "and self._has_no_vote(one)", ""),
    ),
    Mutant(
        "ends-two-votes-at-once",
        "Two majorities need not overlap: two leaders may commit.",
        Edit(Voters._ends_of_votes, "if not self.leaving or self.raft.reconfiguring:", "if False:"),
    ),
    Mutant(
        "refuses-no-revocation",
        "The last voter that answers loses its vote: nothing is ever decided again.",
        Edit(Voters._objection, MAJORITY, "if stay:"),
        Edit(Voters._ends_of_votes, ALLOWED, "True"),
    ),
    Mutant(
        "a-revoked-leader-leads-on",
        "No other peer can take the leader's vote: it is never revoked.",
        Edit(Connectivity.gives_way, "self._me.peer in vote_changes.leaving", "False"),
    ),
    Mutant(
        "lets-a-revoked-peer-in-again",
        "A revoked peer restarts or dials again, and all peers accept it.",
        Edit(handshake.refusal, "if hello.peer in run_state.spendings.revoked:", "if False:"),
    ),
    Mutant(
        "a-snapshot-forgets-revocations",
        "A peer that was away for long accepts the revoked peer.",
        Edit(SpentTokens.become, "{entry.peer: entry for entry in image.revoked}", "{}"),
    ),
    Mutant(
        "speaks-on-with-a-revoked-peer",
        "The leader keeps the connection: a stolen node reads the log forever.",
        Edit(RevokedPeers.shut_out, "sorted(revoked.keys() & self._links.up)", "()"),
    ),
    Mutant(
        "waits-until-a-revoked-peer-goes",
        "The revoked peer stays in the rounds until its connection ends.",
        Edit(
            Leader._remove_banned,
            "sorted(revoked.keys() & readers.keys() - {me})",
            "()",
        ),
    ),
)

REVOCATION_UNIT_MUTANTS = (
    Mutant(
        "any-member-may-revoke",
        "A node without a vote shuts out the others.",
        Edit(entry_validation.may_not_ask, "entry.by in run_state.voters", "True"),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "the-signature-is-not-checked",
        "Any 64 bytes count as the operator's order.",
        Edit(authority.not_permitted, 'return "" if genuine else', 'return "" if True else'),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "voters-revoke-in-every-run",
        "The operator wants to revoke alone, and a stolen voter revokes the others.",
        Edit(authority.not_permitted, "run.voters_revoke", "True"),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "an-order-is-good-for-every-peer",
        "A peer that saw one revocation makes another one of its signature.",
        Edit(statements.act_statement, '"peer", [peer]', '"peer", []'),
        tests=of("state/tokens"),
    ),
    Mutant(
        "an-unproved-revocation-is-acknowledged",
        "A lying leader gets a majority for a revocation, and every peer stops at its entry.",
        Edit(
            entry_validation.objection,
            "why = why or unproved(run_state.authority, body, run_state.signatures)",
            "",
        ),
        tests=of("state/log_applier"),
    ),
    Mutant(
        "a-snapshot-brings-unproved-revocations",
        "A lying leader revokes in a snapshot.",
        Edit(
            entry_validation._acts_of,
            "if not_permitted(authority, act, signatures):",
            "if False:",
        ),
        tests=of("state/log_applier"),
    ),
    # test_a_leader_that_dies_between_the_two_entries
    Mutant(
        "asks-for-a-revocation-once",
        "The leader that got the request dies, and the next one never gets it.",
        Edit(
            Certificates._acts_due,
            "asks = self.acts.values() if hears is not None else ()",
            "asks = list(self.acts.values()) if hears is not None else []; self.acts.clear()",
        ),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_no_vote_ends_before_the_last_change_of_voters_is_committed
    Mutant(
        "revokes-before-the-vote-is-gone-for-good",
        "A new leader may not know that the vote ended: it needs a peer that is excluded.",
        Edit(Voters._has_no_vote, "asked.force or not log.voted_since", "True or log.voted_since"),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_the_leader_and_another_one_at_once
    Mutant(
        "hands-over-to-one-that-is-revoked-too",
        "A peer that is about to be revoked leads for a moment.",
        Edit(Leader.unfit, "*self.vote_changes.leaving", ""),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_a_voter_that_hangs_is_not_reckoned_with
    Mutant(
        "a-voter-that-hangs-is-reckoned-with",
        "All further entries need the answer of a voter that never answers.",
        Edit(Voters._look, "if failure_detector.heard_since(p, since)", ""),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_a_learner_votes_first_where_no_majority_would_remain
    Mutant(
        "no-learner-votes-first",
        "A revocation is refused though a majority could remain.",
        Edit(Voters._objection, "min(fresh, VOTERS_MAX - len(stay))", "0"),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_a_joiner_needs_no_vote_taken
    Mutant(
        "hears-a-revoked-peer",
        "A revoked peer asks for a state, and gets one.",
        Edit(LeadershipTerm.handle_report, "if peer in self.head.revoked or", "if"),
        Edit(RevokedPeers.drops, "revoked and not", "False and not"),
        tests=("tests/protocols/leader/test_voters.py",),
    ),
    # test_who_comes_back_believes_it_from_most_of_the_voters_and_not_from_one
    Mutant(
        "one-word-ends-a-peer",
        "Any single peer of the run can end any other peer.",
        Edit(RevokedPeers._is_barred, "2 * len(others & said.keys()) > len(others)", "bool(said)"),
        tests=("tests/protocols/peer/test_certificates.py",),
    ),
    # test_no_message_ends_a_peer_that_reads_the_log
    Mutant(
        "a-refusal-ends-a-member",
        "Any single peer of the run can end any other peer.",
        Edit(PeerCore._refused, "if not self.raft.run:", "if True:"),
        tests=("tests/protocols/peer/test_core.py",),
    ),
    # test_a_peer_that_went_on_alone_ends_when_its_rival_says_that_it_is_revoked
    Mutant(
        "a-revoked-peer-leads-its-branch-on",
        "A revoked peer that leads its own branch never ends.",
        Edit(RevokedPeers._is_barred, "bool(rivals) and rivals.keys() <= said.keys()", "False"),
        tests=("tests/protocols/peer/test_branches.py",),
    ),
    # test_in_a_branch_only_the_rival_can_be_revoked_and_that_ends_the_fork
    Mutant(
        "a-revoked-rival-may-come-back",
        "The branch never admits a second voter.",
        Edit(
            transitions.apply,
            "isinstance(body, e.Revoked) and body.peer in",
            "False and body in",
        ),
        tests=("tests/protocols/peer/test_branches.py",),
    ),
)
"""Mutants with the test that each breaks."""
