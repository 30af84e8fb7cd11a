"""The versions to which a run can go back if no peer can give its state, or none knows which is
right.

These are checkpoints of peers; and versions in memory, if only the result of a committed round was
lost with all its holders. Must NOT decide when to go back (joins.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from protocols.leader.reports import Reports
from protocols.messages.log_entries import Restore
from protocols.messages.peer import Kept
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.state.run_state import RunState
from protocols.types.ids import Version


def usable(
    run_state: RunState, reports: Reports, kept: Iterable[Kept], committed: tuple[Version, ...]
) -> list[Restore]:
    """All possible rollbacks; `committed`: the versions that cannot be had any more."""
    disks = [
        back_to(run_state, cut)
        for cut in kept
        if run_state.is_kept(cut.lineage, cut.versions)
        if all(_named(run_state, v) in ("", v.state_digest) for v in cut.versions)
    ]
    return _live(run_state, reports, committed) + disks


def best(cuts: Sequence[Restore]) -> Restore:
    """The rollback with the most committed tokens; ties are broken equally by every leader."""
    rest = {cut: [(v.round, v.state_digest) for v in cut.versions] for cut in cuts}
    return max(cuts, key=lambda cut: (cut.tokens, cut.live, rest[cut]))


def cut_at(run_state: RunState, versions: tuple[Version, ...]) -> Kept | None:
    """The run at these versions, which a peer holds; None if the samples until then are
    forgotten."""
    anchor = versions[0].round
    remaining = remaining_at(run_state, anchor)
    if remaining is None:
        return None
    return Kept(run_state.lineage, versions, *progress_at(run_state, anchor), remaining)


def back_to(run_state: RunState, kept: Kept) -> Restore:
    """The Restore entry for these versions."""
    return Restore(
        parent_lineage=run_state.lineage,
        versions=kept.versions,
        inner_step=kept.inner_step,
        tokens=kept.tokens,
        voters=(),
        fork=0,
        lonely=False,
        salt=run_state.index,
        remaining=kept.remaining,
    )


def _live(run_state: RunState, reports: Reports, committed: tuple[Version, ...]) -> list[Restore]:
    """Rollbacks to versions in members' memory that the run went through. Not in a stepwise run,
    where the ranks have the state."""
    if run_state.stepwise:
        return []
    known = dict.fromkeys(reports.newest_of(peer) for peer in run_state.members)
    agreed = [
        cut_at(run_state, versions)
        for versions in known
        if len(versions) == len(committed) and versions != committed
        if all(_is_agreed(run_state, reports, version) for version in versions)
    ]
    return [replace(back_to(run_state, cut), live=True) for cut in agreed if cut is not None]


def _is_agreed(run_state: RunState, reports: Reports, version: Version) -> bool:
    """Does the log name this state, or do most members have it?"""
    agreed = _named(run_state, version) or reports.sure_digest(version.fragment, version.round)
    return agreed == version.state_digest


def _named(run_state: RunState, version: Version) -> str:
    """The digest of the state after this round in the log; "" if it is not there."""
    following = run_state.commit(version.fragment, version.round + 1)
    return following.previous_state_digest if following is not None else ""
