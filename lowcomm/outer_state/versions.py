"""One fragment's outer parameters and momentum: the present version, and the next in the making.

The next outer parameters are made beside the present ones, and take their place in an instant; what
ranks are to read is made where they read it. The next momentum takes the present one's place, once
its round is committed and the ranks have what they wait for: beside it there is none. What is lent
stays what it is for as long as anybody has memory of it. Must NOT know what a step is (the method),
nor who wants it.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowcomm.numerics import operations
from lowcomm.numerics.arrays import copy_of, zeros
from lowcomm.numerics.operations import F32
from peers.exchange.interfaces import Bytes
from peers.exchange.pieces import spans
from peers.ipc.shared_memory import COPIES, MOVE, Slots
from protocols.state import gossip_pairs
from protocols.types.ids import Contributor, Stamp


@dataclass(slots=True)
class Ahead:
    """What of the next version is made, from a result that may be committed."""

    stamp: Stamp
    parts: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    """By first element of each piece: the part that it was made from."""
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By first element of each cell that is made."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed result, as the work gets it, and what it is a step from."""

    outer_P: F32
    """The outer parameters before it; nobody writes to them until the momentum is made."""
    borders: Sequence[int]
    parts: Sequence[Bytes]
    contributors: Sequence[Contributor]

    def pieces(self) -> Iterator[tuple[int, Bytes, int, int]]:
        """(its first element in the fragment; the part that it is of, and from where to where)."""
        for first, last, part in zip(self.borders[:-1], self.borders[1:], self.parts, strict=True):
            for start, stop in spans(last - first):
                yield first + start, part, start, stop


class Places:
    """Where a node's ranks read this fragment."""

    def __init__(self, slots: Slots, fragment: int) -> None:
        self._slots = slots
        self._fragment = fragment
        self.outer = tuple(self._array(place) for place in range(COPIES))
        """Of its outer parameters, fp32 [P] each."""

    def number(self, array_P: F32) -> int | None:
        """Which place this is; None: the ranks do not see it."""
        return next((i for i, place_P in enumerate(self.outer) if place_P is array_P), None)

    def begin(self, place: int) -> None:
        """From now on, whoever reads there finds what it reads torn."""
        self._slots.begin_result(self._fragment, place)

    def expect(self, place: int) -> None:
        """It is to be written to soon: take its memory now. In any thread."""
        self._slots.give_memory(self._fragment, place)

    def forget(self, place: int) -> None:
        """Nobody reads there any more."""
        self._slots.forget_result(self._fragment, place)

    def move(self) -> F32:
        """Where to write what the parameters moved by, fp32 [P]."""
        self.begin(MOVE)
        return self._array(MOVE)

    def _array(self, place: int) -> F32:
        return np.frombuffer(self._slots.result(self._fragment, place), np.float32)


class OuterState:
    """All arrays are fp32, 1-D, of the fragment's size P; the momenta are empty where the method
    keeps none."""

    def __init__(self, size: int, *, keeps_momentum: bool, compared: bool = True) -> None:
        """All zeros. `compared`: others have the same; else its digest only names the round."""
        self.compared = compared
        kept = size if keeps_momentum else 0
        self.outer_P, self.next_outer_P = zeros(size), zeros(size)
        self.momentum_P = zeros(kept)
        """Of the same version, but for what is `due`."""
        self.due: Committed | None = None
        """The step whose momentum is to be made yet, in place."""
        self.base_P = self.outer_P
        """The outer parameters that the ranks' present work started from: `outer_P`, or those of
        an older version. Never written to."""
        self.version = 0
        """The last round that `outer_P` contains."""
        self.lineage = 0
        """Of the run, when that round was committed, or the state adopted; 0: the initial state."""
        self.digest = ""
        """Of the state at that version."""
        self.lock = threading.Lock()
        """For everything but reading: the loop's thread works ahead only where nobody is."""
        self._places: Places | None = None
        self._ahead: Ahead | None = None
        self._lent: tuple[weakref.ref[F32], ...] = ()
        """Views of the arrays of one version. A view lives for as long as memory of it does."""
        self._lent_version = 0
        self._has_contributed = self._has_taken = True
        """The ranks contributed since they were shown a result; had done so before the last one."""

    def share(self, places: Places) -> None:
        """The ranks read here from now on; they got nothing yet."""
        self._places, self._ahead = places, None
        now_P, self.next_outer_P = places.outer
        now_P[:] = self.outer_P
        self.outer_P = self.base_P = now_P

    def carry(self, local_P: F32) -> None:
        """Ranks that trained from their base wrote these parameters, and another state came since:
        move them along, as the ranks will theirs."""
        base_P, outer_P = self.base_P, self.outer_P
        for cell in operations.cells(local_P.size):
            back_C = np.empty(cell.stop - cell.start, np.float32)
            operations.pseudo_gradient(base_P[cell], outer_P[cell], back_C)
            operations.pseudo_gradient(local_P[cell], back_C, local_P[cell])

    def lend(self) -> tuple[F32, F32]:
        """(outer, momentum) of the present version: nobody writes there while anybody has these
        arrays, or memory of them. Of two versions one at a time is lent, and the other copied: else
        the ranks would have no place left."""
        if self._is_lent() and self._lent_version != self.version:
            return copy_of(self.outer_P), copy_of(self.momentum_P)
        views = self.outer_P.view(), self.momentum_P.view()
        known = (ref for ref in self._lent if ref() is not None)
        self._lent = (*known, *map(weakref.ref, views))
        self._lent_version = self.version
        return views

    def _is_lent(self, array_P: F32 | None = None) -> bool:
        """This array; without one, anything."""
        views = [view for ref in self._lent if (view := ref()) is not None]
        return any(array_P is None or np.may_share_memory(view, array_P) for view in views)

    def ahead_of(self, stamp: Stamp) -> Ahead:
        """What is made of the version that this attempt at a round would lead to."""
        if self._ahead is None or self._ahead.stamp != stamp:
            self.make_room()
            self._ahead = Ahead(stamp)
        return self._ahead

    def make_room(self) -> None:
        """Before the next version is begun (again): the ranks' base stays as it is while they train
        from it, and so does what is lent; nobody takes what is not whole for a result."""
        self._ahead = None
        places = self._places
        is_kept = self.next_outer_P is self.base_P or self._is_lent(self.next_outer_P)
        place = places.number(self.next_outer_P) if places is not None else None
        if places is not None and (is_kept or place is None):
            used = {places.number(self.outer_P), places.number(self.base_P)}
            place = next((place for place in self._unlent(places) if place not in used), None)
        if places is not None and place is not None:
            self.next_outer_P = places.outer[place]
            places.begin(place)
        elif is_kept:
            self.next_outer_P = zeros(self.outer_P.size)

    def room_for_momentum(self) -> F32:
        """Where to make the next one: in place, unless the present one is lent."""
        momentum_P = self.momentum_P
        return zeros(momentum_P.size) if self._is_lent(momentum_P) else momentum_P

    def take(self, outer_P: F32, momentum_P: F32) -> None:
        """This is the next version. `outer_P` is ours from now on: whoever made it neither writes
        nor reads there. The momentum is copied: it would keep the memory of both for ever."""
        self._ahead, self.due = None, None
        self.next_outer_P, self.momentum_P = outer_P, self.room_for_momentum()
        self.momentum_P[:] = momentum_P

    def _unlent(self, places: Places) -> list[int]:
        return [x for x in range(COPIES) if not self._is_lent(places.outer[x])]

    def turn(self, version: int, lineage: int, digests: Mapping[int, bytes]) -> str:
        """The next version is the present one. `digests`: of its cells, as far as known; of the
        others the momentum is made. Returns the state's."""
        self.outer_P, self.next_outer_P = self.next_outer_P, self.outer_P
        if not self.compared:
            return self.pass_by(version, lineage)
        found = [
            digests.get(cell.start)
            or operations.cell_digest(self.outer_P[cell], self.momentum_P[cell])
            for cell in operations.cells(self.outer_P.size)
        ]
        self.version, self.lineage = version, lineage
        self.digest, self._ahead = operations.digest_of_cells(found), None
        return self.digest

    def pass_by(self, version: int, lineage: int) -> str:
        """The present version is this one, as it is. Returns its digest."""
        assert not self.compared, "nobody's state stays as it is in a round of all"
        self.version, self.lineage = version, lineage
        self.digest, self._ahead = gossip_pairs.state_digest(version), None
        return self.digest

    @property
    def is_shown(self) -> bool:
        """The outer parameters are where ranks could read them."""
        return self._places is not None and self._places.number(self.outer_P) is not None

    def show(self) -> int:
        """The ranks go on with the outer parameters; returns their place. Most often they are
        there, but where they were made beside what had to stay, or came from others: then nothing
        may be due."""
        places = self._places
        assert places is not None, "there is nobody to see it"
        place = places.number(self.outer_P)
        if place is None:
            # Rather not where the next version is in the making; of what is lent there is one.
            is_next = [self.next_outer_P is outer_P for outer_P in places.outer]
            place = min(self._unlent(places), key=is_next.__getitem__)
            places.begin(place)
            places.outer[place][:] = self.outer_P
            if is_next[place]:
                self._ahead = None
            self.outer_P = places.outer[place]
        self._shown()
        return place

    def show_move(self) -> int:
        """The ranks add what the outer parameters moved by since their base to their own; returns
        its place."""
        assert self._places is not None, "there is nobody to see it"
        operations.rebase(self.outer_P, self.base_P, self._places.move())
        self._shown()
        return MOVE

    def contributed(self) -> None:
        """The ranks contributed: they have taken all but the last one of the results shown."""
        self._has_contributed = True

    def forget_places(self) -> None:
        """Let the system have the places that nobody reads: ranks neither have work that began
        there, nor a result to take there yet; and nothing of them is lent or in the making."""
        places = self._places
        if places is None or not self._has_taken or self._ahead is not None:
            return
        kept = (places.number(self.outer_P), places.number(self.base_P))
        for place in self._unlent(places):
            if place not in kept:
                places.forget(place)

    def expect_next(self) -> None:
        """A next version is to be made soon: where, has memory from now on."""
        places = self._places
        place = places.number(self.next_outer_P) if places is not None else None
        if places is not None and place is not None and self.next_outer_P is not self.base_P:
            places.expect(place)

    def _shown(self) -> None:
        """The ranks go on from the outer parameters."""
        self.base_P = self.outer_P
        self._has_taken, self._has_contributed = self._has_contributed, False
