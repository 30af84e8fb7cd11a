"""Planted bugs in the state of a node in memory: the replica, residues, leases, its ranks.

Must NOT run anything (shell_mutants.py).
"""

from lowcomm.data.lease import NodeLease
from lowcomm.loop_state.rank_checkpoint import RankSaver
from lowcomm.outer_state.error_feedback import ErrorFeedback
from lowcomm.outer_state.outer_step import OuterStep
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.step_replica import StepReplica
from lowcomm.outer_state.versions import Loans, OuterState
from lowcomm.rank_control.rank_rounds import RankRounds
from lowcomm.training.round_rank import RoundRank
from lowcomm.training.round_schedule import RoundSchedule
from peers.ipc.rank_client import RankClient
from peers.ipc.shared_memory import Slots
from peers.ranks.attempt import RankAttempt
from sims.mutations.patch import Edit, Mutant

_REPLICA = (
    *("tests/lowcomm/outer_state/test_versions.py", "tests/lowcomm/outer_state/test_outer_step.py"),
    "tests/lowcomm/outer_state/test_local_contributions.py",
    "tests/lowcomm/outer_state/test_replica.py",
)
_FEEDBACK = (
    "tests/lowcomm/outer_state/test_error_feedback.py",
    "tests/lowcomm/checkpoints/test_residue_file.py",
)
_LEASE = ("tests/lowcomm/data/test_lease.py",)
_RANK_ROUNDS = ("tests/lowcomm/rank_control/test_rank_rounds.py",)
_ATTEMPT = ("tests/peers/ranks/test_attempt.py",)
_RANK_CHECKPOINT = ("tests/lowcomm/loop_state/test_rank_checkpoint.py",)
_SLOTS = ("tests/peers/ipc/test_shared_memory.py",)

REPLICA_MUTANTS = (
    Mutant(
        "momentum-of-the-version-before",
        "The momentum that the step wrote beside a lent one is thrown away.",
        Edit(
            OuterStep.settle,
            "self._scratch.piece(1, mean_C.size)\n        self._method.outer_step(\n"
            "            of.outer_P[here], momentum_C, mean_C, again_C, next_momentum_P[here]\n"
            "        )\n    state.momentum_P = next_momentum_P",
            "self._scratch.piece(1, mean_C.size)\n        self._method.outer_step(\n"
            "            of.outer_P[here], momentum_C, mean_C, again_C, next_momentum_P[here]\n"
            "        )",
        ),
        tests=_REPLICA,
    ),
    Mutant(
        "lent-momentum-overwritten",
        "A checkpoint or a joiner gets half of the next version's momentum.",
        Edit(
            OuterState.room_for_momentum,
            "loans.fresh_like(momentum_P) if loans.is_lent(momentum_P) else momentum_P",
            "momentum_P",
        ),
        tests=_REPLICA,
    ),
    Mutant(
        "lent-parameters-overwritten",
        "A checkpoint or a joiner gets half of the next version's parameters.",
        Edit(OuterState.make_room, " or self._loans.is_lent(self.next_outer_P)", ""),
        tests=_REPLICA,
    ),
    Mutant(
        "the-ranks'-base-overwritten",
        "The pseudo-gradient is taken from parameters that the ranks never started from.",
        Edit(OuterState.make_room, "self.next_outer_P is self.base_P or ", ""),
        tests=_REPLICA,
    ),
    Mutant(
        "a-loan-ends-with-the-next-one",
        "The first of two borrowers loses its array when the second one returns its own.",
        Edit(Loans.lend, "(*known, *map(weakref.ref, views))", "tuple(map(weakref.ref, views))"),
        tests=_REPLICA,
    ),
    Mutant(
        "a-piece-of-another-result-stays",
        "The state contains a piece made ahead from a result that was not committed.",
        Edit(OuterStep.make_rest, "if made.parts.get(at) is not part:", "if at not in made.parts:"),
        tests=_REPLICA,
    ),
    Mutant(
        "the-momentum-is-never-made",
        "From the second round on this peer's state differs from the others'.",
        Edit(OuterStep.make_rest, "state.due = of if state.momentum_P.size else None", "pass"),
        tests=_REPLICA,
    ),
    Mutant(
        "a-step-is-made-while-another-is-due",
        "A piece is made ahead with the momentum of the previous version.",
        Edit(Replica.ahead, " or state.due is not None", ""),
        tests=_REPLICA,
    ),
    Mutant(
        "lends-a-state-whose-momentum-is-due",
        "A joiner gets parameters of this round with momentum of the previous one.",
        Edit(Replica.lend, "self._steps[fragment].settle(state)\n        ", ""),
        tests=_REPLICA,
    ),
    Mutant(
        "adopts-a-kept-state-of-another-round",
        "A peer that comes back claims a state that it does not have.",
        Edit(
            Replica.adopt_kept,
            "fragment >= len(arrays) or cut.fragments[fragment].version != round_",
            "fragment >= len(arrays)",
        ),
        tests=_REPLICA,
    ),
    Mutant(
        "releases-the-base-of-a-stepwise-run",
        "A joiner asks for the committed state, but it is gone.",
        Edit(StepReplica.release, "if at >= step", "if at > step"),
        tests=("tests/lowcomm/outer_state/test_step_replica.py",),
    ),
)

RESIDUE_MUTANTS = (
    Mutant(
        "residue-applied-twice",
        "A commit that is applied again, or a manifest named twice, adds the same residue twice.",
        Edit(
            ErrorFeedback.counted,
            "self._encoded.pop(manifest, None)",
            "self._encoded.get(manifest)",
        ),
        tests=_FEEDBACK,
    ),
    Mutant(
        "residue-dropped-by-a-later-count",
        "If two contributions are counted, the residue of the first one is lost.",
        Edit(ErrorFeedback.counted, "if encoded.before_P is self.residue_P:", "if True:"),
        tests=_FEEDBACK,
    ),
    Mutant(
        "residue-changes-when-it-is-sent",
        "The residue of a contribution that is not counted is sent twice.",
        Edit(
            ErrorFeedback.begin_contribution,
            "self._encoded[manifest] = self._newest",
            "self._encoded[manifest] = self._newest\n    self.residue_P = self._newest.after_P",
        ),
        tests=_FEEDBACK,
    ),
    Mutant(
        "residue-survives-another-state",
        "A contribution encoded before a Restore changes the residue after it.",
        Edit(ErrorFeedback.replace_residue, "self._encoded.clear()", "pass"),
        tests=_FEEDBACK,
    ),
    Mutant(
        "residue-kept-with-a-state-is-forgotten",
        "After a resume the first contribution lacks the residue of the earlier ones.",
        Edit(
            ErrorFeedback.replace_residue,
            "residue_P[:] = kept_P",
            "pass",
        ),
        tests=_FEEDBACK,
    ),
    Mutant(
        "residue-keeps-what-is-not-finite",
        "One overflow stays in the residue for the rest of the run.",
        Edit(ErrorFeedback.encode, "if not finite.all():", "if False:"),
        tests=_FEEDBACK,
    ),
)

LEASE_MUTANTS = (
    Mutant(
        "prefetch-counted-as-consumed",
        "A batch that a loader drew ahead is committed, though no step has trained on it.",
        Edit(
            NodeLease.draw,
            "self._drawn.append(taken)",
            "self._drawn.append(taken)\n    self._seen = union(self._seen, taken)",
        ),
        tests=_LEASE,
    ),
    Mutant(
        "a-renewed-lease-draws-prefetched-samples-again",
        "Samples that a loader has already drawn are trained a second time.",
        Edit(NodeLease._without_drawn, "samples = subtract(samples, batch)", "pass"),
        tests=_LEASE,
    ),
    Mutant(
        "a-renewed-lease-draws-used-samples-again",
        "Samples of steps since the last contribution are trained a second time.",
        Edit(
            NodeLease.renew,
            "self._left = subtract(self._without_drawn(samples), self._seen)",
            "self._left = self._without_drawn(samples)",
        ),
        tests=_LEASE,
    ),
    Mutant(
        "the-last-samples-are-drawn-once",
        "Ranks with rounds left in other fragments run out of samples, and crash.",
        Edit(NodeLease.draw, "and self._last", "and False"),
        tests=_LEASE,
    ),
    Mutant(
        "the-last-result-waits-for-no-samples",
        "If a Restore set back another fragment, the ranks have no samples for its rounds.",
        Edit(RankRounds.resume, "last = command.finish and all(", "last = command.finish or all("),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "the-anchor-comes-last-whatever-samples-are-left",
        "After a rollback the ranks run out of samples before the anchor's result brings new ones.",
        Edit(RoundSchedule.choices, "if ANCHOR not in left:", "if True:"),
        tests=("tests/lowcomm/training/test_round_rank.py",),
    ),
    Mutant(
        "a-lease-adds-to-the-one-before",
        "Samples that now belong to another peer are drawn here, too.",
        Edit(
            NodeLease.renew,
            "self._left = subtract(self._without_drawn(samples), self._seen)",
            "self._left = subtract(union(samples, self._left), self._seen)",
        ),
        tests=_LEASE,
    ),
    Mutant(
        "a-contribution-names-samples-twice",
        "The next contribution names the samples of this one again.",
        Edit(NodeLease.contribute, "seen, self._seen = self._seen, ()", "seen = self._seen"),
        tests=_LEASE,
    ),
    Mutant(
        "steps-that-are-thrown-away-count",
        "Samples of steps that a Restore took back are never trained.",
        Edit(NodeLease.forget, "self._seen = ()", "pass"),
        tests=_LEASE,
    ),
    Mutant(
        "a-step-uses-the-newest-batch",
        "Samples of batches drawn ahead are named before they are trained.",
        Edit(NodeLease.step, "self._drawn.popleft()", "self._drawn.pop()"),
        tests=_LEASE,
    ),
)

RANK_MUTANTS = (
    Mutant(
        "uncounted-tokens-survive-a-full-result",
        "Tokens of discarded steps give the next contribution weight.",
        Edit(
            RankRounds.resume,
            "if full:\n        attempt.uncounted",
            "if False:\n        attempt.uncounted",
        ),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "uncounted-tokens-survive-the-ranks",
        "Tokens of ranks that died give the next contribution weight.",
        Edit(RankRounds.ranks_lost, "_Attempt()", "_Attempt(uncounted=self._attempt.uncounted)"),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "a-result-that-waits-survives-the-ranks",
        "New ranks get the result that the lost ranks waited for, and another one after it.",
        Edit(RankRounds.ranks_lost, "_Attempt()", "_Attempt(waiting=self._attempt.waiting)"),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "new-ranks-write-over-what-is-still-sent",
        "Half of a contribution is that of the lost ranks, half that of the new ones.",
        Edit(RankRounds.ranks_lost, "self._keep_given()", "pass"),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "ranks-go-on-without-samples",
        "The result names fewer samples than an interval takes: the loader runs dry.",
        Edit(RankRounds.resume, "anchor and count(self._lease) < needed", "False"),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "a-contribution-without-tokens-counts",
        "The contribution has no weight: the mean divides by zero.",
        Edit(RankRounds.contributed, "if event.steps < 1 or event.tokens < 1:", "if False:"),
        tests=_RANK_ROUNDS,
    ),
    Mutant(
        "a-contribution-of-one-rank-counts",
        "The shards of the other ranks are still those of the previous round.",
        Edit(RankAttempt.contributed, "if len(so_far) < len(self._ranks):", "if False:"),
        tests=_ATTEMPT,
    ),
    Mutant(
        "ranks-may-disagree-on-tokens",
        "The contribution has the weight of the rank that came last.",
        Edit(RankAttempt.contributed, "if len(counts) > 1:", "if False:"),
        tests=_ATTEMPT,
    ),
    Mutant(
        "a-rank-overwrites-an-incomplete-generation",
        "Half of a contribution belongs to the next one.",
        Edit(
            RankAttempt.contributed, "if generation > slowest + 1:", "if generation > slowest + 2:"
        ),
        tests=_ATTEMPT,
    ),
    Mutant(
        "a-layout-may-have-a-gap",
        "Elements that no rank writes are averaged.",
        Edit(RankAttempt.layout, "if written != total:", "if written > total:"),
        tests=_ATTEMPT,
    ),
    Mutant(
        "a-snapshot-of-one-rank-is-whole",
        "Later ranks resume from a directory that lacks the other ranks' state.",
        Edit(
            RankAttempt.snapshotted,
            "if len(self._snapshots[directory]) < len(self._ranks):",
            "if False:",
        ),
        tests=_ATTEMPT,
    ),
    Mutant(
        "a-result-is-read-while-it-is-written",
        "Ranks take a torn result for a complete one.",
        Edit(Slots.begin_result, "self._words[self._generation(fragment, place)] = 0", "pass"),
        tests=_SLOTS,
    ),
    Mutant(
        "done-flags-of-a-dead-attempt-count",
        "A contribution counts before the new ranks have written it.",
        Edit(Slots.void, "self.clear_done(fragment, rank)", "pass"),
        tests=_SLOTS,
    ),
    Mutant(
        "a-contribution-is-told-of-before-it-is-written",
        "The daemon sends what is left of an older one in place of what a GPU still copies.",
        Edit(
            RoundRank._contribute,
            "self._when_written(\n        partial(contribute, fragment, steps=steps, "
            "tokens=tokens, samples=samples)\n    )",
            "contribute(fragment, steps=steps, tokens=tokens, samples=samples)",
        ),
        tests=("tests/lowcomm/training/test_round_rank.py",),
    ),
    Mutant(
        "a-result-that-has-come-is-forgotten",
        "A rank whose GPU has fetched a result waits for it for ever.",
        Edit(RankClient.arrived_results, "waiting[0] for", "waiting.popleft() for"),
        tests=("tests/peers/ipc/test_rank_client.py",),
    ),
    Mutant(
        "a-state-is-saved-beside-the-one-before",
        "The file of the one before gets the values of a later step.",
        Edit(RankSaver.save, "self.wait()", "pass"),
        tests=_RANK_CHECKPOINT,
    ),
    Mutant(
        "a-state-is-saved-without-a-copy",
        "A restart goes on with an optimizer that has stepped further than its parameters.",
        Edit(RankSaver.save, "self._copies.of(tensors)", "tensors"),
        tests=_RANK_CHECKPOINT,
    ),
)

STATE_MUTANTS = (*REPLICA_MUTANTS, *RESIDUE_MUTANTS, *LEASE_MUTANTS, *RANK_MUTANTS)
