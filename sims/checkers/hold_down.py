"""A peer that was lost repeatedly waits before it is admitted, twice as long after each loss.

The wait begins with its first request after it was excluded. Must NOT judge whether a donor could
serve it then (protocols/leader/recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocols.interface import events as v
from protocols.leader import HOLD_DOWN_MAX_S, HOLD_DOWN_S
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId
from sims.node.node import Node


@dataclass(slots=True)
class TermRequests:
    """The requests to a leader and its entries in one term."""

    term: int
    seen: int
    inside: set[PeerId]
    losses: Mapping[PeerId, int]
    """The losses of each peer, from the log at the last check."""
    asked: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By peer: when its first request to join arrived."""


class HoldDown:
    """Checks the admissions of all leaders."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._reigns: dict[PeerId, TermRequests] = {}

    def check_event(self, node: Node, event: v.Event) -> None:
        """A core handled an event."""
        raft, led_term = node.raft, node.core.led_term
        if led_term is None:
            return
        head, last, reign = led_term.head, raft.log.last_index, self._reigns.get(node.peer)
        if reign is None or reign.term != raft.term:
            # Entries of its first event as leader are not checked.
            reign = TermRequests(raft.term, last, set(head.receivers), head.losses)
            self._reigns[node.peer] = reign
        if isinstance(event, v.MessageReceived) and isinstance(event.message, m.Join):
            reign.asked.setdefault(event.peer, node.now)
        if last > reign.seen:
            for entry in raft.log.since(max(reign.seen, raft.log.base) + 1):
                self._wrote(node, reign, entry.body, head.losses)
            reign.seen, reign.losses = last, dict(head.losses)

    def _wrote(
        self, node: Node, reign: TermRequests, body: e.Entry, losses: Mapping[PeerId, int]
    ) -> None:
        match body:
            case e.Lost(peer=peer) | e.Left(peer=peer):
                reign.inside.discard(peer)
                reign.asked.pop(peer, None)
            case e.Member(info=info):
                reign.inside.add(info.peer)
            case e.Cut(info=info):
                if info.peer not in reign.inside:
                    # A commit in between may have forgiven a loss, or another loss followed.
                    times = min(losses.get(info.peer, 0), reign.losses.get(info.peer, 0))
                    self._lets_in(node, reign, info.peer, times)
                reign.inside.add(info.peer)
            case _:
                pass

    def _lets_in(self, node: Node, reign: TermRequests, peer: PeerId, times: int) -> None:
        asked = reign.asked.pop(peer, None)
        if asked is None or times < 2:
            return
        hold_down_s = min(HOLD_DOWN_S * 2 ** (times - 2), HOLD_DOWN_MAX_S)
        waited_s = node.now - asked
        if waited_s < hold_down_s - 1e-6:
            self._found(
                f"{node.peer} lets {peer} in after {waited_s:.1f} s, and it was lost {times} times"
            )
