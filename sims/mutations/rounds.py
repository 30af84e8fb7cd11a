"""Planted bugs in the rounds and the leader of the protocol core; simulated seeds catch them.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import Leader, Removals, RoundDecisions
from protocols.leader.joins import Joins
from protocols.leader.reports import Reports, RoundReports
from protocols.participant.participant import Participant
from protocols.participant.state_recovery import StateRecovery
from protocols.rounds.contributions import Holdings
from protocols.rounds.fencing import Fence
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.local_work import LocalWork
from protocols.rounds.round_exchange import RoundExchange
from protocols.state.run_state import RunState
from sims.mutations.patch import Edit, Mutant
from sims.mutations.raft import LOG_MUTANTS
from sims.mutations.units import of

APPLY_STALE = """\
parts = len(commit.borders) - 1
    whole = [s for s in held.results if s.round == commit.round and held.digest(s, parts)]
    stamp = whole[0] if whole else stamp
    if not whole:"""
APPLY_EARLY = """\
plan = self.run_state.open_plan(self.fragment)
    early = plan is not None and plan.stamp.round == self.version + 1 and not self.applying
    if commit is None and early and self.exchange.held.digest(plan.stamp, plan.num_parts):
        self.applying = plan.stamp
        return [ApplyRound(plan.stamp, plan.parts.borders, False)]
    if commit is None or self.applying:"""

ROUND_MUTANTS = (
    Mutant(
        "applies-a-stale-attempt",
        "The committed attempt has a smaller roster: two peers hold different states.",
        Edit(
            FragmentRounds._apply,
            "if held.digest(stamp, len(commit.borders) - 1) != commit.result_digest:",
            APPLY_STALE,
        ),
    ),
    Mutant(
        "counts-holds-of-a-stale-attempt",
        "The commit names a result that no peer can have.",
        Edit(
            RoundReports.holders,
            "stamp == plan.stamp",
            "stamp.round == plan.stamp.round",
        ),
    ),
    Mutant(
        "contributes-twice-to-one-round",
        "Restarted ranks contribute again: owners sum different bytes of one peer.",
        Edit(
            LocalWork.contribute,
            "round_ = union(self.carried, made.samples), self.next_round",
            "round_ = union(self.carried, made.samples), self.fence.open_round",
        ),
    ),
    Mutant(
        "commits-whom-an-attempt-left-out",
        "An excluded peer is listed as counted and rebases as if it were: its work is lost.",
        Edit(
            RoundDecisions.next_commit,
            "reports.ready[peer] for peer in plan.roster",
            "reports.ready[peer] for peer in sorted(reports.ready)",
        ),
    ),
    Mutant(
        "sums-without-the-missing",
        "A sum that lacks a contributor of the roster becomes the round's result.",
        Edit(
            Holdings.terms,
            "if not set(peers) <= held.keys():\n        return ()\n"
            "    return tuple(held[peer] for peer in peers)",
            "if len(set(peers) - held.keys()) > 1:\n        return ()\n"
            "    return tuple(held[peer] for peer in peers if peer in held)",
        ),
    ),
    Mutant(
        "a-late-sum-joins-the-new-attempt",
        "A sum of the previous attempt is listed with the terms of the new one.",
        Edit(
            RoundExchange.part_reduced,
            "plan.stamp == event.stamp:\n        self.held.reduced(event)",
            "plan.stamp.round == event.stamp.round:\n"
            "        sums = self.held.sums\n"
            "        sums[plan.stamp, event.part] = sums[event.stamp, event.part]\n"
            "        self.held.reduced(type(event)(plan.stamp, event.part, event.digest))",
        ),
    ),
    Mutant(
        "applies-before-the-commit",
        "The round may be committed with another result than the applied one, or not at all.",
        Edit(
            FragmentRounds._apply,
            "if commit is None or self.applying:",
            APPLY_EARLY,
        ),
    ),
    Mutant(
        "commits-with-one-holder",
        "If the only holder dies, the result is lost, though the log says it is held.",
        Edit(
            RoundDecisions._agreed,
            "return digest if enough and not another",
            "return digest if enough or holding",
        ),
    ),
    Mutant(
        "holds-with-a-gap",
        "A peer that lacks an earlier round counts as able to take this step.",
        Edit(
            RoundExchange._hold,
            "if version != plan.stamp.round - 1:",
            "if False:",
        ),
    ),
    Mutant(
        "no-rebase",
        "A peer that was not counted loses the steps that it made.",
        Edit(
            FragmentRounds.applied,
            'work.resume("counted" if work.counted(round_) else "rebase", round_)',
            'work.resume("counted", round_)',
        ),
    ),
    Mutant(
        "rebases-and-carries",
        "Work that was counted stays in the parameters, and is counted again.",
        Edit(
            FragmentRounds.applied,
            'work.resume("counted" if work.counted(round_) else "rebase", round_)',
            'work.resume("rebase", round_)',
        ),
    ),
    Mutant(
        "carries-over-a-transfer",
        "Work that a skipped round counted is in the new state, and is counted again.",
        Edit(
            FragmentRounds.state_received,
            '"counted" if any(map(work.counted, skipped)) else "rebase"',
            '"rebase"',
        ),
    ),
    Mutant(
        "takes-payloads-of-another-lineage",
        "Rounds that a Restore took back have numbers that come again.",
        Edit(Fence._in_run, " and stamp.lineage == self.run_state.lineage", ""),
    ),
    Mutant(
        "drops-results-at-once",
        "A peer that lacks a committed result cannot get it any more.",
        Edit(
            FragmentRounds._moved,
            "needed = round_ if self.awaited is None else min(round_, self.awaited)",
            "needed = round_ + KEEP_ROUNDS",
        ),
    ),
)

LEADER_MUTANTS = (
    Mutant(
        "joiner-skips-the-open-round",
        "A round that is committed during the transfer is never applied to the new state.",
        Edit(
            StateRecovery.state_received,
            "*rounds.state_received(version.round, ",
            "*rounds.state_received(self._run_state.committed(event.fragment), ",
        ),
    ),
    Mutant(
        "joiner-receives-nothing",
        "Results that are committed during a transfer do not reach the joiner.",
        Edit(RoundExchange.advance_round, "run_state.receivers", "run_state.members"),
        Edit(Participant.fetched, "self.run_state.receivers", "self.run_state.members"),
    ),
    Mutant(
        "believes-a-lying-donor",
        "A peer adopts a state that is not that of the cut.",
        Edit(
            StateRecovery.state_received,
            "(version.round, version.state_digest) != (event.round, event.state_digest)",
            "version.round != event.round",
        ),
    ),
    Mutant(
        "nobody-compares-states",
        "A peer with a silently corrupted state trains on, and spoils every mean.",
        Edit(StateRecovery.check_digest, "commit is None or ", "True or "),
        tests=of("participant/member_status", "peer/core"),
    ),
    Mutant(
        "restores-a-void-branch",
        "The run goes back to a state that an earlier Restore has taken back.",
        Edit(
            RunState.is_kept,
            "self.branches[left.index(lineage) :] if lineage in left else []",
            "[]",
        ),
    ),
    Mutant(
        "keeps-reports-of-an-earlier-life",
        "A restarted peer counts as ready and as a holder of data that it has lost.",
        Edit(Leader.restarted, "self.reports.forget(peer)", "pass"),
        Edit(Joins.join, "self.reports.forget(peer)", "pass"),
    ),
    Mutant(
        "decides-before-it-is-told",
        "Data not reported yet in a new term looks lost: healthy peers are excluded.",
        Edit(Leader.informed, "all(map(self.accounts.told, here))", "True"),
    ),
    Mutant(
        "a-new-leader-is-told-nothing",
        "The new leader waits for contributions that exist but are not reported again.",
        Edit(Participant.new_leader, "self.all_rounds.forget_reports()", "pass"),
    ),
    Mutant(
        "lets-go-whom-it-needs",
        "The only holder of the newest state leaves, though it was ready to stay.",
        Edit(Removals.next_entry, "self.joins.needs(peer, patient=patient)", "False"),
    ),
    Mutant(
        "any-digest-is-the-majority's",
        "A differing state is handed out, and named as the state of all peers.",
        Edit(Reports.sure_digest, "if 2 * votes > len(members) else", "if votes else"),
        Edit(Reports.is_split, "2 * max(counts.values()) <= len(holders)", "False"),
    ),
)

MUTANTS = (*LOG_MUTANTS, *ROUND_MUTANTS, *LEADER_MUTANTS)
