"""Where a run can go back to when nobody can give its state any more, or none knows which is right.

To a checkpoint that somebody kept; or to what members have in memory, when it is only the result of
a committed round that is gone with all who had it. Must NOT say when it is time (joins.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from protocols.leader.reports import Reports
from protocols.messages.log_entries import Restore
from protocols.messages.peer import Kept
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.state.run_state import Membership
from protocols.types.ids import Version


def usable(
    members: Membership, reports: Reports, kept: Iterable[Kept], committed: tuple[Version, ...]
) -> list[Restore]:
    """All that the run can go back to; `committed`: what it cannot go on from."""
    disks = [
        back_to(members, cut)
        for cut in kept
        if members.is_kept(cut.lineage, cut.versions)
        if all(_named(members, v) in ("", v.state_digest) for v in cut.versions)
    ]
    return _live(members, reports, committed) + disks


def best(cuts: Sequence[Restore]) -> Restore:
    """That of most committed tokens; the rest makes it the same one whoever leads."""
    rest = {cut: [(v.round, v.state_digest) for v in cut.versions] for cut in cuts}
    return max(cuts, key=lambda cut: (cut.tokens, cut.live, rest[cut]))


def cut_at(members: Membership, versions: tuple[Version, ...]) -> Kept | None:
    """The run at these versions, which somebody holds; None: nobody remembers what was trained
    until then."""
    anchor = versions[0].round
    remaining = remaining_at(members, anchor)
    if remaining is None:
        return None
    return Kept(members.lineage, versions, *progress_at(members, anchor), remaining)


def back_to(members: Membership, kept: Kept) -> Restore:
    """The entry with which everybody goes on from this cut."""
    return Restore(
        parent_lineage=members.lineage,
        versions=kept.versions,
        inner_step=kept.inner_step,
        tokens=kept.tokens,
        voters=(),
        fork=0,
        lonely=False,
        salt=members.index,
        remaining=kept.remaining,
    )


def _live(members: Membership, reports: Reports, committed: tuple[Version, ...]) -> list[Restore]:
    """What members have in memory, if it is a state that the run went through. Not in a stepwise
    run: there it is the ranks that have the state."""
    if members.stepwise:
        return []
    known = dict.fromkeys(reports.newest_of(peer) for peer in members.members)
    agreed = [
        cut_at(members, versions)
        for versions in known
        if len(versions) == len(committed) and versions != committed
        if all(_is_agreed(members, reports, version) for version in versions)
    ]
    return [replace(back_to(members, cut), live=True) for cut in agreed if cut is not None]


def _is_agreed(members: Membership, reports: Reports, version: Version) -> bool:
    """The log names this state, or most members have it."""
    agreed = _named(members, version) or reports.sure_digest(version.fragment, version.round)
    return agreed == version.state_digest


def _named(members: Membership, version: Version) -> str:
    """The state after this round, as the log has it; "": it does not say."""
    following = members.commit(version.fragment, version.round + 1)
    return following.previous_state_digest if following is not None else ""
