"""Who took part in the run, and when it came last: as many as a snapshot can name.

Must NOT forget anybody who is in the run, nor decide who gets in (leader/joins.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protocols.messages.log_entries import Commit
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX, SEATS_MAX

if TYPE_CHECKING:
    from protocols.state.run_state import Membership

FORGIVE_ROUNDS = 8
"""A peer that is counted again after so many rounds has one loss less to its name."""
assert SEATS_MAX > PEERS_MAX, "there is always somebody to forget"


def has_room(members: Membership, peer: PeerId) -> bool:
    """May it get in? No message could name more."""
    return len(members.receivers) < PEERS_MAX or peer in members.receivers


def take(members: Membership, info: PeerInfo) -> None:
    """The peer comes (again). In a run that has seen too many, the one that came least lately of
    those who are gone is a stranger from now on: it would be a new peer, with a new number. Without
    that, nobody could read a snapshot any more: neither who joins nor who restarts."""
    seats = members.seats
    seats.pop(info.peer, None)
    seats[info.peer] = info
    if len(seats) > SEATS_MAX:
        inside = {info.peer, *members.members, *members.joiners}
        stranger = next(peer for peer in seats if peer not in inside)
        for table in (seats, members.returned, members.losses):
            table.pop(stranger, None)


def forgiven(losses: Mapping[PeerId, int], commit: Commit) -> dict[PeerId, int]:
    """How often each went away without a word, after this commit."""
    if commit.round % FORGIVE_ROUNDS:
        return dict(losses)
    counted = {term.peer for term in commit.contributors}
    left = {peer: count - (peer in counted) for peer, count in losses.items()}
    return {peer: count for peer, count in left.items() if count}
