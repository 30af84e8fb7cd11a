"""Which payloads get memory: those that the core could count by the log that it has read.

All parts of a peer's payloads together are one fragment at most. Must NOT keep a payload, nor
decide whether it counts (the core).
"""

from collections.abc import Callable, Sequence
from functools import partial

from peers.exchange.interfaces import RoundWork
from peers.exchange.payload_keys import Key, key_of
from protocols.messages import ContributionChunk, PieceChunk
from protocols.peer import PeerCore
from protocols.state import RunState
from protocols.types import PeerId, Stamp


def size_of(
    core: PeerCore,
    work: RoundWork,
    peer: PeerId,
    chunk: PieceChunk,
    *,
    beside: Callable[[PeerId, Key], int],
) -> Callable[[int], int] | None:
    """A function of encoded sizes if this payload may come from this peer; else None. Memory is
    given only to members, and only for payloads that the core could count by the log that it
    has read. `beside`: elements of other payloads for which the peer has memory."""
    run_state = core.run_state
    run = run_state.run
    if run is None or peer not in run_state.receivers or not chunk.elements:
        return None
    stamp, sizes = chunk.stamp, run.fragment_elements
    if stamp.run != run.run or stamp.fragment >= len(sizes):
        return None
    borders = borders_of(run_state, stamp)
    fits = True  # Without borders: the sender may have read more of the log.
    if borders is not None:
        fits = is_part(borders, chunk.part, chunk.elements)
    # All parts together are one fragment: a peer gets memory for one at most.
    others = beside(peer, key_of(chunk))
    fits = fits and others + chunk.elements <= sizes[stamp.fragment]
    fence = core.rounds[stamp.fragment].exchange.fence
    if isinstance(chunk, ContributionChunk):
        fits = fits and fence.may_slice(stamp, chunk.part, peer, core.me.peer)
        return partial(work.contribution_bytes, stamp.fragment) if fits else None
    fits = fits and fence.may_result(stamp, chunk.part, peer)
    fits = fits and _may_have(run_state, chunk.layers, work, stamp)
    return partial(work.result_bytes, stamp.fragment) if fits else None


def _may_have(run_state: RunState, layers: int, work: RoundWork, stamp: Stamp) -> bool:
    """Can a result of this attempt have so many layers? Each costs memory."""
    commit = run_state.commit(stamp.fragment, stamp.round)
    plan = run_state.plan(stamp.fragment, stamp.round)
    if commit is not None:
        return layers == work.layers(stamp.fragment, len(commit.contributors))
    if plan is not None and plan.stamp == stamp:
        return layers == work.layers(stamp.fragment, len(plan.roster))
    # Its sender has read more of the log: a few more peers may have joined.
    return 1 <= layers <= work.layers(stamp.fragment, 2 * len(run_state.receivers))


def borders_of(run_state: RunState, stamp: Stamp) -> tuple[int, ...] | None:
    """The borders of the round's parts in this view; None if our log does not have them."""
    commit = run_state.commit(stamp.fragment, stamp.round)
    if commit is not None:
        return commit.borders if commit.view == stamp.view else None
    plan = run_state.open_plan(stamp.fragment)  # It is cached, and needed for each piece.
    if plan is None or plan.stamp.round != stamp.round:
        plan = run_state.plan(stamp.fragment, stamp.round)
    return plan.parts.borders if plan is not None and plan.stamp.view == stamp.view else None


def is_part(borders: Sequence[int], part: int, elements: int) -> bool:
    """Is there a part of this number, with so many elements?"""
    return part < len(borders) - 1 and elements == borders[part + 1] - borders[part]
