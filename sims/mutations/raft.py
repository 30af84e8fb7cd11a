"""Planted bugs in the log and its elections, as in rounds.py for the rest of the core.

Must NOT run anything (mutants.py).
"""

from protocols.raft import commitment
from protocols.raft.commitment import Commitment
from protocols.raft.durability import Durability
from protocols.raft.election import Election
from protocols.raft.log import Log
from protocols.raft.node import Raft
from protocols.raft.replication import Replication
from protocols.state.log_applier import LogApplier
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

TRUNCATE = """\
if last < self.log.last_index:
        self.log.cut_off(last + 1)
        self.disk.log_changed(last + 1)
    self._commit(now)"""

LOG_MUTANTS = (
    Mutant(
        "votes-twice",
        "Two candidates of one term may both get a majority: two leaders write two logs.",
        Edit(Election.asked, 'state.vote in ("", peer)', "True"),
    ),
    Mutant(
        "forgets-its-vote",
        "A voter that restarts within a term votes a second time in it.",
        Edit(Raft.__init__, "saved.term, saved.vote", 'saved.term, ""'),
    ),
    Mutant(
        "forgets-its-term",
        "A restarted voter votes again in old terms, and follows their leaders.",
        Edit(Raft.__init__, "saved.term, saved.vote", '0, ""'),
    ),
    Mutant(
        "votes-for-a-shorter-log",
        "A leader that lacks committed entries overwrites them.",
        Edit(Election.asked, "(vote.last_term, vote.last_index) >= ours and ", ""),
    ),
    Mutant(
        "half-is-a-majority",
        "Both halves of a partition elect a leader, and commit.",
        Edit(Log.is_majority, "> len(voters)", ">= len(voters)"),
        Edit(Replication.held, "found[len(found) // 2]", "found[(len(found) - 1) // 2]"),
    ),
    Mutant(
        "half-of-the-signers-is-a-majority",
        "One acknowledgement too few commits an entry, and a newer leader replaces it.",
        Edit(commitment._majority_index, "found[len(found) // 2]", "found[(len(found) - 1) // 2]"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "commits-older-terms-by-counting",
        "Raft paper, figure 8: a leader of a term in between may still overwrite the entry.",
        Edit(commitment.as_leader, " and log.term_at(held_index) == term", ""),
    ),
    Mutant(
        "counts-false-acknowledgements",
        "A leader makes the voters' acknowledgements itself, and commits what only it has.",
        Edit(Commitment._check, "not self._is_signed(held)", "False"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "counts-acknowledgements-of-another-log",
        "A leader sends two logs, and both count as committed.",
        Edit(Commitment._check, "held.log_hash == self._log.hash_at(held.index)", "True"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "believes-the-leader-about-commits",
        "A leader says that entries are committed which no other peer has.",
        Edit(Commitment.committed, "if self._proofs.required:", "if False:"),
        Edit(Commitment.merged, "if not self._proofs.required:", "if True:"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "keeps-a-log-of-its-own",
        "A peer to which a leader sent other entries than to all others follows no leader again.",
        Edit(Commitment.merged, "self._log.doubted = commit_index, True", "_ = commit_index, True"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "promises-before-the-disk",
        "A vote or an acknowledgement counts that a crash of its sender forgets.",
        Edit(Durability.promise, "self.write_number + self._is_dirty", "0"),
    ),
    Mutant(
        "acknowledges-before-the-disk",
        "An entry counts as held by a peer that loses it in a crash.",
        Edit(
            Raft._append,
            "self.disk.promise(peer, self.commitment.answer(last, self.commit_index))",
            "from protocols.interface.commands import Send; "
            "self._out.append(Send(peer, self.commitment.answer(last, self.commit_index)))",
        ),
    ),
    Mutant(
        "leader-counts-itself-before-the-disk",
        "With two voters an entry counts as committed that only one disk has.",
        Edit(Replication.held, "durable_index if", "self.log.last_index if"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "concludes-before-its-own-disk",
        "A follower acts on an entry that its crash forgets, and a new leader may lack.",
        Edit(
            commitment.as_follower,
            "min(state.leader_durable, durable_index)",
            "min(state.leader_durable, log.last_index)",
        ),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "concludes-before-the-leaders-disk",
        "One of three voters acts on an entry that a crash of the leader forgets.",
        Edit(commitment.as_follower, "min(state.leader_durable, durable_index)", "durable_index"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "two-are-always-enough",
        "Two of five voters act on an entry that the other three never had.",
        Edit(commitment.as_follower, "log.is_majority({me, state.leader})", "True"),
        tests=of("raft/commitment"),
    ),
    Mutant(
        "forgets-what-the-disk-refused",
        "After a full disk the log on it has a gap, and a restart cannot read it.",
        Edit(Durability.failed, "self.log_changed(self._writes.first)", "pass"),
    ),
    Mutant(
        "no-pre-vote",
        "An isolated peer raises its term forever, and disturbs the run when it is back.",
        Edit(Election.advance, "self._ask_first(now)", "self._stand(now, urgent=False)"),
    ),
    Mutant(
        "each-candidacy-is-equally-short",
        "With round trips longer than the timeout no candidate ever gets its votes.",
        Edit(Election._stand, "self._timer.tries += 1", "pass"),
        tests=of("raft/election"),
    ),
    Mutant(
        "no-check-quorum",
        "A leader that receives nothing is still followed, and nothing is ever committed.",
        Edit(
            Election._check_quorum,
            "self._log.is_majority(acknowledged | {self._me})",
            "True",
        ),
    ),
    Mutant(
        "no-log-matching",
        "A follower keeps entries of a lost leader below those of the new one.",
        Edit(Raft._append, "if held != append.previous_term:", "if held is None:"),
    ),
    Mutant(
        "truncates-what-it-acknowledged",
        "A heartbeat cuts off entries that were counted as held.",
        Edit(Raft._append, "self._commit(now)", TRUNCATE),
    ),
    Mutant(
        "follows-an-old-leader",
        "Entries of an old term are appended, and acknowledged in the new term.",
        Edit(Raft._append, "if append.term < self.term:", "if False:"),
    ),
    Mutant(
        "changes-two-voters-at-once",
        "The majorities before and after need not overlap: a minority removes all others.",
        Edit(Raft.reconfiguring, "self.log.reconfigured > self.commit_index", "False"),
    ),
    Mutant(
        "ignores-a-snapshot",
        "A peer that was behind applies the next entries to a run state that is too old.",
        Edit(LogApplier.install, "transitions.become(self.run_state, image)", "pass"),
    ),
)
