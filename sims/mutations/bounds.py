"""Planted bugs in time limits (votes, hold-down, stale work), and in the entries that relays and
followers may take as committed.

Must NOT run anything (mutants.py).
"""

from protocols.leader import recovery
from protocols.leader.joins import Joins
from protocols.leader.voters import Voters
from protocols.links.log_relay import LogRelay
from protocols.participant.member_status import MemberStatus
from protocols.peer import wait_reason
from protocols.raft import commitment
from protocols.raft.durability import Durability
from protocols.raft.node import Raft
from protocols.raft.writes import Writes
from protocols.rounds.local_work import LocalWork
from sims.mutations.patch import Edit, Mutant

BOUND_MUTANTS = (
    Mutant(
        "a-broken-disk-is-not-reported",
        "A voter that cannot write keeps its vote: after one more failure nothing is decided.",
        Edit(
            MemberStatus.watch_disk,
            "self.disk_fails = why",
            'self.disk_fails = ""',
        ),
    ),
    Mutant(
        "a-broken-disk-keeps-its-vote",
        "The leader knows of the failed disk, but the peer keeps its vote.",
        Edit(
            Voters.next_voter,
            "if peer != self.me and (why := self.accounts.broken(peer)):",
            'if (why := ""):',
        ),
    ),
    Mutant(
        "a-mended-disk-is-not-reported",
        "A peer that can write again gets no vote in this term.",
        Edit(MemberStatus.news, "if self._broke:", "if why:"),
    ),
    Mutant(
        "a-full-disk-is-tried-late",
        "There is room on the disk again, but the peer acknowledges nothing for a minute.",
        Edit(Durability.failed, "now + RETRY_S", "now + 30 * RETRY_S"),
    ),
    Mutant(
        "a-hung-disk-is-not-noticed",
        "A write never returns: a leader leads on though nothing is decided, and rounds wait.",
        Edit(
            Writes.due, "self._oldest.since + self.patience_s if self._writes else NEVER", "NEVER"
        ),
    ),
    Mutant(
        "old-work-is-contributed",
        "Ranks that were away for long contribute work on a model many rounds old.",
        Edit(
            LocalWork.contribute,
            "if round_ - 1 - self.base > STALENESS_ROUNDS_MAX:",
            "if False:",
        ),
    ),
    Mutant(
        "old-work-moves-along",
        "A transfer brings a state many rounds newer, and work on the old state is kept.",
        Edit(
            LocalWork.resume,
            "if version - self.base > STALENESS_ROUNDS_MAX:",
            "if False:",
        ),
    ),
    Mutant(
        "goes-back-to-the-oldest-checkpoint",
        "Of several usable checkpoints the run resumes from the one with the fewest tokens.",
        Edit(recovery.best, "return max(", "return min("),
    ),
    Mutant(
        "goes-back-though-a-member-has-the-state",
        "A request for a state rolls the run back, though another member has the state.",
        Edit(recovery.Rollback.restore, "not self._nobody_has_state()", "not self.asking"),
    ),
    Mutant(
        "concludes-an-older-term",
        "A follower takes entries of an old term as committed; a later leader may replace them.",
        Edit(commitment.as_follower, " and log.term_at(index) == state.term", ""),
    ),
)
BOUND_UNIT_MUTANTS = (
    Mutant(
        "a-hung-write-is-handed-over-again",
        "Changes pile up behind a write that hangs, and come to the disk one by one.",
        Edit(Durability.collect, " or (self.why and self._writes)", ""),
        tests=("tests/protocols/raft/test_durability.py",),
    ),
    Mutant(
        "a-disk-that-returns-late-works",
        "A slow disk is given up and taken again with each of its writes.",
        Edit(Durability.persisted, "if in_time:", "if True:"),
        tests=("tests/protocols/raft/test_durability.py",),
    ),
    Mutant(
        "a-stopped-process-blames-its-disk",
        "A daemon that was stopped for some seconds gives its vote up when it goes on.",
        Edit(Durability.hangs, "now >= due + PAUSE_S", "False"),
        tests=("tests/protocols/raft/test_durability.py",),
    ),
    Mutant(
        "a-leader-with-a-hung-disk-leads-on",
        "Its heartbeats go on and nothing is decided until its disk returns.",
        Edit(Raft.advance, "self._resign(now)", "pass"),
        tests=("tests/protocols/raft/test_durability.py",),
    ),
    Mutant(
        "durable-survives-a-truncation",
        "A write under way marks entries as durable that a newer leader has replaced.",
        Edit(Writes.log_changed, "if write.end >= index:", "if False:"),
        tests=("tests/protocols/raft/test_durability.py",),
    ),
    Mutant(
        "a-flapping-peer-is-let-in-at-once",
        "Each time that a flapping peer is admitted and lost costs the others an attempt.",
        Edit(Joins._admitted_at, "losses < 2 or", "losses >= 0 or"),
        tests=("tests/protocols/leader/test_joins.py",),
    ),
    Mutant(
        "a-flapping-peer-waits-anew-when-it-asks-again",
        "The hold-down of a peer that asks again never ends.",
        Edit(Joins.join, "self.asked_at.setdefault(peer, now)", "self.asked_at[peer] = now"),
        tests=("tests/protocols/leader/test_joins.py",),
    ),
    Mutant(
        "a-wait-for-the-commit-names-nobody",
        "The status of a leader that waits does not name the peers that it waits for.",
        Edit(wait_reason._commit, "{_names(core, late) or 'this node'}", "all"),
        tests=("tests/protocols/peer/test_wait_reason.py",),
    ),
    Mutant(
        "a-relay-forwards-nothing",
        "Learners that read the log through a relay read nothing.",
        Edit(LogRelay.relay_entries, "self._forward() if self.share else []", "[]"),
        tests=("tests/protocols/links/test_log_relay.py",),
    ),
    Mutant(
        "a-relay-keeps-reports",
        "Reports of learners to their relay never reach the leader.",
        Edit(LogRelay._collect, "self._pending.append(", "(lambda report: None)("),
        tests=("tests/protocols/links/test_log_relay.py",),
    ),
)
