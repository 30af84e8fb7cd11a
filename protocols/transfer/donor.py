"""The donor's side of a transfer: copies of the states that cuts name, until their receivers have
them.

A copy is made at the version that the cut names, before the next round is applied. Of a cut's
donors only as many hash as must agree, and another one if they do not. Must NOT decide which donor
gives which cells (receiver.py, of the joiner), nor hold cells.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.interface.commands import Command, Send
from protocols.interface.events import StateCopied, StateHashed
from protocols.interface.transfer_commands import CopyState, HashState, ReleaseCopy, ServeCells
from protocols.messages.log_entries import Cut
from protocols.messages.transfer import CellSpan, CutRoots, FetchLeaves, FetchState, Leaves, NoState
from protocols.state.run_state import RunState
from protocols.transfer.state_roots import first_to_hash
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version
from protocols.types.limits import FRAGMENTS_MAX, LEAF_BYTES, LEAVES_MAX

KEEP_S = 300.0
"""Seconds without a request after which a copy is dropped. A joiner that still needs it asks for
another cut."""
SPARE_S = 2.0
"""Seconds after which the other donors hash too if the log has no roots. The first donors need one
second for a few GiB."""


@dataclass(slots=True)
class OwedState:
    """A state that this peer has to give to one receiver."""

    index: int
    versions: tuple[Version, ...]
    until: float
    hash_at: float
    """When to hash, if the log has no roots by then."""
    copying: set[int] = field(default_factory=set[int])
    """Fragments that the shell is copying."""
    cells: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment, the number of cells of each finished copy."""
    hashing: bool = False
    leaves: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By fragment, the leaves of each hashed copy."""

    @property
    def is_copied(self) -> bool:
        return len(self.cells) == len(self.versions)


class StateDonor:
    """All states that this peer owes as a donor."""

    def __init__(self, me: PeerId, run_state: RunState) -> None:
        self._me = me
        self._run_state = run_state
        self._owed: dict[PeerId, OwedState] = {}
        self._asked: dict[PeerId, dict[int, FetchState | FetchLeaves]] = {}
        """Unanswered requests by peer: for leaves by fragment, and for cells under -1."""
        self._unable: dict[PeerId, int] = {}
        """Receivers of cuts with a state that this peer cannot give, with the cuts' log indexes."""

    @property
    def deadline(self) -> float:
        due = [owed.until for owed in self._owed.values()]
        due += [x.hash_at for peer, x in self._owed.items() if self._may_hash(peer, x)]
        return min(due, default=NEVER)

    def owe(self, index: int, cut: Cut, now: float) -> list[Command]:
        """This peer is a donor of the cut; an earlier cut of the same receiver is over."""
        peer = cut.info.peer
        commands = self._release(peer)  # Requests stay: the peer may have read of this cut first.
        hash_at = now if self._me in first_to_hash(cut) else now + SPARE_S
        self._owed[peer] = OwedState(index, cut.versions, now + KEEP_S, hash_at)
        return commands

    def asked(self, peer: PeerId, message: FetchState | FetchLeaves, now: float) -> list[Command]:
        """A joiner asks for leaves or cells, perhaps before we have read of its cut."""
        owed = self._owed.get(peer)
        known = owed is not None and owed.index == message.index
        if isinstance(message, FetchState) and not message.cells:
            return self.drop(peer) if known else []
        if owed is not None and known:
            owed.until = now + KEEP_S
        asked = self._asked.setdefault(peer, {})
        kind = -1 if isinstance(message, FetchState) else message.fragment
        if kind in asked or len(asked) <= FRAGMENTS_MAX:  # One for each fragment, and -1.
            asked[kind] = message
        return []

    def copied(self, event: StateCopied) -> list[Command]:
        """The shell has made a copy, or could not."""
        for peer, owed in self._owed.items():
            if owed.index == event.cut_index:
                if not event.cells:
                    return self._cannot(peer)
                owed.cells[event.fragment] = event.cells
        return []

    def hashed(self, event: StateHashed) -> tuple[list[Command], bool]:
        """The shell has hashed a copy. Also returns whether it differs from the digest of our
        state."""
        for peer, owed in self._owed.items():
            if owed.index == event.cut_index:
                if event.state_digest != owed.versions[event.fragment].state_digest:
                    return self._cannot(peer), True
                owed.leaves[event.fragment] = event.leaves
        return [], False

    def advance(self, applied: Sequence[int | None], now: float) -> list[Command]:
        """Copy and hash the states that cuts name, and answer requests. Call it before rounds are
        applied. `applied`: the version of each fragment, None while it changes.
        """
        commands: list[Command] = []
        for peer, owed in list(self._owed.items()):
            if now >= owed.until:
                commands += self.drop(peer)
            else:
                commands += self._copy(peer, owed, applied) + self._hash(peer, now)
        for peer, asked in list(self._asked.items()):
            for kind, message in list(asked.items()):
                read = message.index <= self._run_state.index
                answer = self._answer(peer, message) if read else None
                if answer is not None:
                    del asked[kind]
                    commands += answer
            if not asked:
                self._asked.pop(peer, None)
        return commands

    def _copy(self, peer: PeerId, owed: OwedState, applied: Sequence[int | None]) -> list[Command]:
        commands: list[Command] = []
        for version in owed.versions:
            fragment, held = version.fragment, applied[version.fragment]
            if fragment in owed.copying or held is None or held < version.round:
                continue  # The last rounds before the cut are committed, but not applied here yet.
            if held > version.round:
                return [*commands, *self._cannot(peer)]
            owed.copying.add(fragment)
            commands.append(CopyState(owed.index, fragment, version.round))
        return commands

    def _hash(self, peer: PeerId, now: float) -> list[Command]:
        owed = self._owed.get(peer)
        if owed is None or not owed.is_copied or owed.hashing:
            return []
        wanted = any(isinstance(x, FetchLeaves) for x in self._asked.get(peer, {}).values())
        if not (wanted or (self._may_hash(peer, owed) and now >= owed.hash_at)):
            return []
        owed.hashing = True
        return [HashState(owed.index, version.fragment) for version in owed.versions]

    def _may_hash(self, peer: PeerId, owed: OwedState) -> bool:
        """Is it this donor's turn to hash, since the log has no roots?"""
        index, cut = self._run_state.cut_of(peer)
        known = cut is not None and index == owed.index and bool(cut.roots)
        return owed.is_copied and not owed.hashing and not known

    def _cannot(self, peer: PeerId) -> list[Command]:
        index = self._owed[peer].index
        commands = self.drop(peer)
        self._unable[peer] = index
        return [*commands, Send(peer, NoState(index))]

    def _answer(self, peer: PeerId, message: FetchState | FetchLeaves) -> list[Command] | None:
        """The answer to a request; None if the copy is not ready, or the cut is not read yet."""
        owed = self._owed.get(peer)
        if owed is None or owed.index != message.index:
            return [Send(peer, NoState(message.index))]
        if isinstance(message, FetchLeaves):
            leaves = owed.leaves.get(message.fragment)
            return None if leaves is None else _page(peer, message, leaves)
        if not owed.is_copied:
            return None
        known = tuple(span for span in message.cells if _is_in(span, owed))
        return [ServeCells(peer, owed.index, known)]

    def drop(self, peer: PeerId) -> list[Command]:
        """The receiver needs nothing more from this peer."""
        self._asked.pop(peer, None)
        return self._release(peer)

    def drop_all(self) -> list[Command]:
        """The run went back: all copies are void."""
        self._unable.clear()
        return [command for peer in list(self._owed) for command in self.drop(peer)]

    def jumped(self, *, is_member: bool, now: float) -> list[Command]:
        """A snapshot replaced entries of the log: drop the copies for receivers that have another
        cut now, or none. For a new cut without roots the leader waits for this donor's report, even
        if it is that this peer cannot give the state any more."""
        known = self._unable | {peer: owed.index for peer, owed in self._owed.items()}
        cuts = self._run_state.cuts
        over = [peer for peer, index in known.items() if cuts.get(peer, (0, None))[0] != index]
        commands = [command for peer in over for command in self._release(peer)]
        for index, cut in cuts.values() if is_member else ():
            if self._me in cut.donors and not cut.roots and known.get(cut.info.peer) != index:
                commands += self.owe(index, cut, now)
        return commands

    def disconnected(self, peer: PeerId) -> None:
        """The receiver repeats its requests on a new connection."""
        self._asked.pop(peer, None)

    def reports(self) -> list[CutRoots]:
        """Reports for the leader: roots of hashed copies, and cuts that this peer cannot give."""
        return [CutRoots(peer, index, ()) for peer, index in self._unable.items()] + [
            CutRoots(peer, owed.index, tuple(map(root_of, (owed.leaves[f] for f in range(size)))))
            for peer, owed in self._owed.items()
            if len(owed.leaves) == (size := len(owed.versions))
        ]

    def _release(self, peer: PeerId) -> list[Command]:
        """Drop the copies for this receiver's cut, but not its requests."""
        self._unable.pop(peer, None)
        owed = self._owed.pop(peer, None)
        return [ReleaseCopy(peer, owed.index)] if owed is not None and owed.copying else []


def root_of(leaves: bytes) -> str:
    """The root of a tree with these leaves, 64 hex digits."""
    return hashlib.sha256(leaves).hexdigest()


def _page(peer: PeerId, message: FetchLeaves, leaves: bytes) -> list[Command]:
    """A page of leaves; no command if the request is beyond the last leaf."""
    first = LEAF_BYTES * message.first
    page, total = leaves[first : first + LEAF_BYTES * LEAVES_MAX], len(leaves) // LEAF_BYTES
    of = (message.index, message.fragment, message.first, total)
    return [Send(peer, Leaves(*of, page))] if page else []


def _is_in(span: CellSpan, owed: OwedState) -> bool:
    return span.first < span.stop <= owed.cells.get(span.fragment, 0)
