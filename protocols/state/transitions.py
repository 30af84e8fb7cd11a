"""Changes of the replicated state: by an entry of the log, or as a whole by a snapshot.

Must NOT look at anything but the state and the entry, nor check the entry or the snapshot
(entry_validation.py).
"""

from collections.abc import Mapping
from dataclasses import replace

from protocols.acts.authority import lineage_after
from protocols.acts.orders import PAUSE
from protocols.acts.settings import run_with
from protocols.messages import log_entries as e
from protocols.messages.snapshot import (
    Branch,
    LossCount,
    NewestCut,
    ReturnedInView,
    RunStateSnapshot,
)
from protocols.raft.log import voters_after
from protocols.raft.mandate import extended
from protocols.state import step_entries
from protocols.state.entry_validation import objection
from protocols.state.run_state import KEEP_COMMITS, STALENESS_ROUNDS_MAX, RunState
from protocols.types.errors import LogError
from protocols.types.ids import PeerId, PeerInfo, RoundKey
from protocols.types.limits import PEERS_MAX, SEATS_MAX, TOTAL_MAX
from protocols.types.sample_ranges import Grant

LOST_ROUNDS = STALENESS_ROUNDS_MAX + 2
"""Rounds for which a lost peer's samples are kept: if it returns later, its work is too old anyway.
It may have applied one more round after it was lost, with a result that it held."""
FORGIVE_ROUNDS = 8
"""Every so many rounds, a peer that is counted has one of its losses forgiven."""
assert SEATS_MAX > PEERS_MAX, "there is always a peer to forget"


def apply(run_state: RunState, entry: e.LogEntry, *, judged: bool = False) -> None:
    """Apply the next entry. Raises LogError, and changes nothing, if it contradicts the state;
    `judged`: it does not."""
    assert entry.index == run_state.index + 1, "entries are applied in order"
    why = "" if judged else objection(run_state, entry.body)
    if why:
        raise LogError(f"entry {entry.index} of the log {why}")
    run_state.index, making = entry.index, step_entries.num_making(run_state)
    if isinstance(entry.body, e.Restore) and entry.body.fork:
        _fork(run_state, entry.body)
    voters = voters_after(run_state.voters, entry.body)
    if not isinstance(entry.body, e.Run):
        run_state.mandate = extended(run_state.mandate, entry, changes=voters != run_state.voters)
    run_state.voters = voters
    if isinstance(entry.body, e.Run | e.Restore):
        _begin_lineage(run_state, entry)
    match entry.body:
        case e.Run() as run:
            run_state.run = run
        case e.Restore() as restore:
            _restore(run_state, entry.index, restore)
        case e.Cut() as cut:
            _cut(run_state, entry.index, cut)
        case e.Roots(peer=peer, roots=roots):
            index, cut = run_state.cuts[peer]
            run_state.cuts[peer] = (index, replace(cut, roots=roots))
        case e.Member(info=info):
            _take(run_state, info)
            run_state.joiners.pop(info.peer, None)
            run_state.members[info.peer] = info
            # Also without a Cut, from its own checkpoint: its earlier incarnation may have
            # contributed.
            run_state.returned[info.peer] = ReturnedInView(info.peer, run_state.newest_view)
            run_state.ledger.came(info, view=run_state.newest_view)
        case e.Left() | e.Lost() as body:
            _gone(run_state, body)
        case e.Witness(info=info):
            run_state.witnesses[info.peer] = info
        case e.BranchDropped():
            run_state.rivals = {}
        case e.View() as view:
            _view(run_state, view)
        case e.Attempt() as attempt:
            run_state.attempts[RoundKey(attempt.fragment, attempt.round)] = attempt
        case e.Commit() as commit:
            _commit(run_state, commit)
        case e.Lease(grants=grants):
            for grant in grants:
                _lease(run_state, grant)
        case e.StepCommit() | e.Halt() | e.Close() as body:
            step_entries.apply(run_state, entry.index, body)
        case e.TokenSpent() | e.Revoked() | e.TokenRevoked() | e.TokenIssued() as body:
            run_state.spendings.apply(body, entry.index, needed=run_state.readers.keys())
            if isinstance(body, e.Revoked) and body.peer in run_state.rivals:
                run_state.rivals = {}  # The other of two voters: its branch never comes back.
        case e.Steered() as body:
            _steer(run_state, entry.index, body)
        case e.Elected() | e.Voter():
            pass
    run_state.forget_plans()
    if run_state.ledger.gone:
        _settle(run_state)
    if run_state.stepwise and run_state.views:
        step_entries.stand_still(run_state, entry, making)


def image_of(run_state: RunState) -> RunStateSnapshot:
    """The whole state as plain records, for a snapshot."""
    assert run_state.run is not None, "there is nothing before the Run"
    spendings = run_state.spendings
    return RunStateSnapshot(
        index=run_state.index,
        lineage=run_state.lineage,
        branches=tuple(run_state.branches),
        run=run_state.run,
        restored=run_state.restored,
        restored_index=run_state.restored_index,
        voters=run_state.voters,
        members=tuple(run_state.members.values()),
        joiners=tuple(run_state.joiners.values()),
        granted=tuple(NewestCut(index, cut) for index, cut in run_state.cuts.values()),
        views=tuple(run_state.views),
        attempts=tuple(run_state.attempts.values()),
        commits=tuple(c for f in sorted(run_state.commits) for c in run_state.commits[f]),
        seats=tuple(run_state.seats.values()),
        witnesses=tuple(run_state.witnesses.values()),
        forks=run_state.forks,
        rivals=tuple(run_state.rivals.values()),
        returned=tuple(run_state.returned.values()),
        losses=tuple(LossCount(peer, count) for peer, count in run_state.losses.items()),
        inner_step=run_state.inner_step,
        tokens=run_state.tokens,
        books=run_state.ledger.books(),
        step_progress=run_state.step_progress,
        spent=tuple(spendings.peers.values()),
        forgotten=spendings.forgotten,
        revoked=tuple(spendings.revoked.values()),
        revoked_tokens=tuple(spendings.revoked_tokens.values()),
        issued=tuple(spendings.issued.values()),
        mandate=run_state.mandate,
        act_indices=tuple(index for index, _ in spendings.acts),
        steered=tuple(run_state.orders.acts.values()),
        steered_indices=tuple(run_state.orders.indices.values()),
        last_rounds=run_state.orders.last_rounds,
        spent_indices=tuple(spendings.spent_at.values()),
    )


def become(run_state: RunState, image: RunStateSnapshot) -> None:
    """Replace the whole state by the image's, in place: other objects keep references to this
    one."""
    run_state.index, run_state.run, run_state.voters = image.index, image.run, image.voters
    run_state.mandate = image.mandate
    run_state.lineage, run_state.branches = image.lineage, list(image.branches)
    run_state.restored, run_state.restored_index = image.restored, image.restored_index
    run_state.members = {info.peer: info for info in image.members}
    run_state.joiners = {info.peer: info for info in image.joiners}
    newest = ((x.index, x.cut) for x in image.granted)
    run_state.cuts = {cut.info.peer: (index, cut) for index, cut in newest}
    run_state.views = list(image.views)
    run_state.attempts = {RoundKey(a.fragment, a.round): a for a in image.attempts}
    run_state.commits = {}
    for commit in image.commits:
        run_state.commits.setdefault(commit.fragment, []).append(commit)
    run_state.seats = {info.peer: info for info in image.seats}
    run_state.witnesses = {info.peer: info for info in image.witnesses}
    run_state.forks = image.forks
    run_state.rivals = {info.peer: info for info in image.rivals}
    run_state.returned = {x.peer: x for x in image.returned}
    run_state.losses = {loss.peer: loss.count for loss in image.losses}
    run_state.inner_step, run_state.tokens = image.inner_step, image.tokens
    run_state.forget_plans()
    run_state.ledger.become(image.books)
    run_state.step_progress = image.step_progress
    run_state.spendings.become(image)
    run_state.orders.become(image)


def copy(run_state: RunState) -> RunState:
    """A copy that may apply entries before they are committed (the leader's)."""
    other = RunState(signatures=run_state.signatures)
    if run_state.run is not None:
        become(other, image_of(run_state))
    return other


def _begin_lineage(run_state: RunState, entry: e.LogEntry) -> None:
    """The run begins, or goes back to a checkpoint: its rounds are numbered anew."""
    if isinstance(entry.body, e.Restore):
        rounds = tuple(version.round for version in entry.body.versions)
        run_state.branches.append(Branch(run_state.lineage, rounds))
        run_state.orders.restored(rounds)
    run_state.lineage = lineage_after(run_state.lineage, entry)


def _steer(run_state: RunState, index: int, act: e.Steered) -> None:
    """A pause lets the open rounds end, and no other one begin; in a stepwise run it stops the
    view."""
    fragments = range(0 if run_state.stepwise else run_state.fragments)
    last = (run_state.committed(f) + (run_state.open_plan(f) is not None) for f in fragments)
    here = {peer: info.incarnation for peer, info in run_state.readers.items()}
    run_state.orders.apply_act(act, index, last_rounds=tuple(last), incarnations=here)
    assert run_state.run is not None, "an act follows the Run"
    run_state.run = run_with(run_state.run, run_state.orders.settings)
    progress = run_state.step_progress
    if act.what == PAUSE and run_state.stepwise and run_state.views and not progress.halted:
        run_state.step_progress = progress.stopped(index)


def _gone(run_state: RunState, body: e.Left | e.Lost) -> None:
    peer, until = body.peer, 0
    if isinstance(body, e.Lost):
        run_state.losses[peer] = run_state.losses.get(peer, 0) + 1
        until = run_state.committed(0) + LOST_ROUNDS
    run_state.ledger.went(peer, view=run_state.newest_view, until=until)
    tables = (run_state.members, run_state.joiners, run_state.cuts, run_state.witnesses)
    for table in tables:
        table.pop(peer, None)


def _restore(run_state: RunState, index: int, restore: e.Restore) -> None:
    """Members stay members; open rounds and cuts belong to the old lineage and are dropped."""
    run_state.restored, run_state.restored_index = restore, index
    run_state.inner_step, run_state.tokens = restore.inner_step, restore.tokens
    if restore.live:
        void = run_state.commits_after(restore.versions[0].round)
        counted = ((x.view, zip(x.contributors, x.samples, strict=False)) for x in void)
        run_state.ledger.take_back((c.peer, view, s) for view, terms in counted for c, s in terms)
    else:
        run_state.ledger.restore(restore.remaining)
    run_state.commits, run_state.attempts, run_state.views, run_state.cuts = {}, {}, [], {}
    run_state.returned = {}
    if run_state.stepwise:
        drawn = restore.remaining.frontier
        run_state.step_progress = run_state.step_progress.after_rollback(
            restore.versions[0], drawn=drawn
        )


def _fork(run_state: RunState, restore: e.Restore) -> None:
    """Some voters go on without the others, which may do the same."""
    others = set(run_state.voters) - set(restore.voters) if restore.lonely else set[PeerId]()
    run_state.forks = (*run_state.forks, restore.fork)
    run_state.rivals = {p: run_state.readers[p] for p in sorted(others & run_state.readers.keys())}


def _cut(run_state: RunState, index: int, cut: e.Cut) -> None:
    info, known = cut.info, run_state.members.get(cut.info.peer)
    _take(run_state, info)
    run_state.cuts[info.peer] = (index, cut)
    run_state.ledger.came(info, view=run_state.newest_view)
    if known is not None and known.incarnation == info.incarnation:
        return  # A member with a wrong state; its contributions still count.
    # A restarted member has no state: until it gets one it only receives. Its vote is on its
    # disk and stays valid.
    run_state.members.pop(info.peer, None)
    run_state.joiners[info.peer] = info
    run_state.returned[info.peer] = ReturnedInView(info.peer, run_state.newest_view)


def _view(run_state: RunState, view: e.View) -> None:
    if run_state.stepwise:
        run_state.views.append(view)
        run_state.step_progress = run_state.step_progress.began()
        step_entries.forget_views(run_state)
        return
    # An earlier view is kept only while it is the latest one of some open round.
    fragments = range(run_state.fragments)
    run_state.views = [
        old
        for old in run_state.views
        if any(
            old.first_round[f] < view.first_round[f] > run_state.committed(f) + 1 for f in fragments
        )
    ]
    run_state.views.append(view)


def _lease(run_state: RunState, grant: Grant) -> None:
    info = run_state.members[grant.peer]
    run_state.ledger.lease(grant, incarnation=info.incarnation, came=run_state.came(grant.peer))


def _settle(run_state: RunState) -> None:
    """Free the samples of departed peers once no open round can count them."""
    plan = run_state.open_plan(0)
    view, roster = (plan.stamp.view, plan.roster) if plan is not None else (0, ())
    run_state.ledger.settle(round_=run_state.committed(0), view=view, roster=roster)


def _commit(run_state: RunState, commit: e.Commit) -> None:
    commits = run_state.commits.setdefault(commit.fragment, [])
    commits.append(commit)
    del commits[:-KEEP_COMMITS]
    run_state.attempts.pop(RoundKey(commit.fragment, commit.round), None)
    if commit.fragment == 0:  # The anchor fragment counts the run's progress.
        steps = max((c.steps for c in commit.contributors), default=0)
        run_state.inner_step = min(run_state.inner_step + steps, TOTAL_MAX)
        tokens = sum(c.tokens for c in commit.contributors)
        run_state.tokens = min(run_state.tokens + tokens, TOTAL_MAX)
        for term, samples in zip(commit.contributors, commit.samples, strict=False):
            run_state.ledger.committed(term.peer, samples)
        run_state.losses = forgiven(run_state.losses, commit)


def _take(run_state: RunState, info: PeerInfo) -> None:
    """The peer (re)joins. If a run has seen too many peers, the departed one that joined longest
    ago is forgotten: if it returns, it is a new peer with a new slot. Otherwise snapshots would
    grow beyond the limit that joiners and restarted peers can read."""
    seats = run_state.seats
    seats.pop(info.peer, None)
    seats[info.peer] = info
    if len(seats) > SEATS_MAX:
        inside = {info.peer, *run_state.members, *run_state.joiners}
        stranger = next(peer for peer in seats if peer not in inside)
        for table in (seats, run_state.returned, run_state.losses):
            table.pop(stranger, None)


def forgiven(losses: Mapping[PeerId, int], commit: e.Commit) -> dict[PeerId, int]:
    """The losses of each peer after this commit."""
    if commit.round % FORGIVE_ROUNDS:
        return dict(losses)
    counted = {term.peer for term in commit.contributors}
    left = {peer: count - (peer in counted) for peer, count in losses.items()}
    return {peer: count for peer, count in left.items() if count}
