"""The peers that took part in the run, as many as a snapshot can name.

Must NOT forget a peer that is in the run, nor decide which peer gets in (leader/joins.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protocols.messages.log_entries import Commit
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX, SEATS_MAX

if TYPE_CHECKING:
    from protocols.state.run_state import RunState

FORGIVE_ROUNDS = 8
"""Every so many rounds, a peer that is counted has one of its losses forgiven."""
assert SEATS_MAX > PEERS_MAX, "there is always a peer to forget"


def has_room(run_state: RunState, peer: PeerId) -> bool:
    """Is there room for this peer? A message can name only so many."""
    return len(run_state.receivers) < PEERS_MAX or peer in run_state.receivers


def take(run_state: RunState, info: PeerInfo) -> None:
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


def forgiven(losses: Mapping[PeerId, int], commit: Commit) -> dict[PeerId, int]:
    """The losses of each peer after this commit."""
    if commit.round % FORGIVE_ROUNDS:
        return dict(losses)
    counted = {term.peer for term in commit.contributors}
    left = {peer: count - (peer in counted) for peer, count in losses.items()}
    return {peer: count for peer, count in left.items() if count}
