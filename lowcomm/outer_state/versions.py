"""One fragment's outer parameters and momentum: the present version, and the unfinished next one.

The next outer parameters are made beside the present ones, in the place where the ranks will read
them, and replace them by a swap of references. The next momentum is made in place, after its round
is committed and the ranks have the parameters that they wait for; there is no second array for it,
unless the first is lent. Lent arrays do not change as long as a view of their memory exists. Must
NOT know how a step is computed (the method does), nor which component uses the state.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowcomm.numerics import operations, state_digests
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.operations import F32
from peers.exchange import Bytes, spans
from peers.ipc import COPIES, MOVE, Slots
from protocols.state import gossip_pairs
from protocols.types import Contributor, Stamp


@dataclass(slots=True)
class FinishedAhead:
    """The finished pieces of the next version, made from a result that may be committed."""

    stamp: Stamp
    parts: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    """By first element of each finished piece, the part that it was made from."""
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By first element of each finished cell, its digest."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed result, as `Work.apply` gets it, and the outer parameters before its step."""

    outer_P: F32
    """The outer parameters before the step; they do not change until the momentum is made."""
    borders: Sequence[int]
    parts: Sequence[Bytes]
    contributors: Sequence[Contributor]

    def pieces(self) -> Iterator[tuple[int, Bytes, int, int]]:
        """Yields (first element in the fragment, part, start, stop) of each piece; start and stop
        count from the part's first element."""
        for first, last, part in zip(self.borders[:-1], self.borders[1:], self.parts, strict=True):
            for start, stop in spans(last - first):
                yield first + start, part, start, stop


class SharedPlaces:
    """The places in shared memory in which a node's ranks read one fragment."""

    def __init__(self, slots: Slots, fragment: int) -> None:
        self._slots = slots
        self._fragment = fragment
        self.outer = tuple(self._array(place) for place in range(COPIES))
        """The places for outer parameters, fp32 [P] each."""

    def number(self, array_P: F32) -> int | None:
        """Index of the place that is this array; None if ranks cannot read the array."""
        return next((i for i, place_P in enumerate(self.outer) if place_P is array_P), None)

    def mark_torn(self, place: int) -> None:
        """Mark the place as torn, so that a rank that reads there from now on rejects the
        content."""
        self._slots.begin_result(self._fragment, place)

    def expect(self, place: int) -> None:
        """Allocate the memory of a place that will be written to soon. May be called in any
        thread."""
        self._slots.give_memory(self._fragment, place)

    def free_place(self, place: int) -> None:
        """Free the memory of a place that no rank reads any more."""
        self._slots.forget_result(self._fragment, place)

    def move(self) -> F32:
        """The place for the change of the parameters, fp32 [P], marked as torn."""
        self.mark_torn(MOVE)
        return self._array(MOVE)

    def _array(self, place: int) -> F32:
        return np.frombuffer(self._slots.result(self._fragment, place), np.float32)


@dataclass(frozen=True, slots=True)
class OuterVersion:
    """The name of one version of the outer state."""

    round: int = 0
    """The last round that the outer parameters contain."""
    lineage: int = 0
    """The lineage in which that round was committed, or the state adopted; 0: the initial state."""
    digest: str = ""
    """The digest of the state; "" of the initial one."""


class Loans:
    """The lent arrays of a fragment, all of one version. They do not change as long as they, or
    views of their memory, are held."""

    def __init__(self, arrays: LargeArrays) -> None:
        self._arrays = arrays
        self._views: tuple[weakref.ref[F32], ...] = ()
        """The lent views. A view stays alive as long as a view of its memory does."""
        self._round = 0
        """The round of their version."""

    def lend(self, round_: int, outer_P: F32, momentum_P: F32) -> tuple[F32, F32]:
        """Lend the (outer, momentum) of the version after this round. While another version is
        lent, the arrays are copied: otherwise the ranks would have no place left."""
        if self._round != round_ and self.is_lent():
            return self._arrays.copy_of(outer_P), self._arrays.copy_of(momentum_P)
        views = outer_P.view(), momentum_P.view()
        known = (ref for ref in self._views if ref() is not None)
        self._views = (*known, *map(weakref.ref, views))
        self._round = round_
        return views

    def fresh_like(self, array_P: F32) -> F32:
        """Zeros of this array's size, which are not lent."""
        return self._arrays.zeros(array_P.size)

    def is_lent(self, array_P: F32 | None = None) -> bool:
        """True if this array is lent; without an array, if any is."""
        views = [view for ref in self._views if (view := ref()) is not None]
        return any(array_P is None or np.may_share_memory(view, array_P) for view in views)


class ShownResults:
    """The results that were shown to a node's ranks. The ranks take a result before they contribute
    again, so their contributions tell which results they have taken."""

    def __init__(self) -> None:
        self._contributions = 1
        """Number of contributions of the ranks. Only the thread that takes them changes it, without
        the lock of the state, which an outer step may hold for long."""
        self._at_last = 0
        """Their number when a result was last shown."""
        self.earlier_are_taken = True
        """Whether the ranks had taken all earlier results when that was."""

    def contributed(self) -> None:
        """The ranks have contributed."""
        self._contributions += 1

    def shown(self) -> None:
        """The ranks are shown another result."""
        contributions = self._contributions  # Read once: the other thread may add one.
        self.earlier_are_taken = contributions != self._at_last
        self._at_last = contributions


class OuterState:
    """The outer parameters and momentum of one fragment: fp32, one-dimensional, of the fragment's
    size P. The momenta are empty if the method keeps none."""

    def __init__(
        self,
        size: int,
        *,
        keeps_momentum: bool,
        compared: bool = True,
        arrays: LargeArrays = IN_MEMORY,
    ) -> None:
        """All arrays begin as zeros. `compared`: all peers have the same state, and compare its
        digest; if not, the digest only names the round. `arrays` makes them."""
        self.compared = compared
        kept = size if keeps_momentum else 0
        self.outer_P, self.next_outer_P = arrays.zeros(size), arrays.zeros(size)
        self.momentum_P = arrays.zeros(kept)
        """The momentum of the present version; of the one before as long as a step is `due`."""
        self.due: Committed | None = None
        """The committed step of which the momentum must still be made, in place; None if there is
        none."""
        self.base_P = self.outer_P
        """The outer parameters that the ranks' present work started from: `outer_P`, or those of an
        older version. Never written to."""
        self.present = OuterVersion()
        """The version that `outer_P` is."""
        self.lock = threading.Lock()
        """Held for all work except reading. The event loop's thread works ahead only if no other
        thread holds it."""
        self._places: SharedPlaces | None = None
        self._ahead: FinishedAhead | None = None
        self._loans = Loans(arrays)
        self._shown_results = ShownResults()

    def share(self, places: SharedPlaces) -> None:
        """The ranks read these places from now on; they have read no parameters yet."""
        self._places, self._ahead = places, None
        now_P, self.next_outer_P = places.outer
        now_P[:] = self.outer_P
        self.outer_P = self.base_P = now_P

    def carry(self, local_P: F32) -> None:
        """Move the ranks' parameters by the change of the outer ones since the ranks' base: another
        state arrived after the ranks had written them. The ranks move their own in the same way."""
        base_P, outer_P = self.base_P, self.outer_P
        for cell in state_digests.cells(local_P.size):
            back_C = np.empty(cell.stop - cell.start, np.float32)
            operations.pseudo_gradient(base_P[cell], outer_P[cell], back_C)
            operations.pseudo_gradient(local_P[cell], back_C, local_P[cell])

    def lend(self) -> tuple[F32, F32]:
        """(outer, momentum) of the present version. They do not change as long as they, or views of
        their memory, are held."""
        return self._loans.lend(self.present.round, self.outer_P, self.momentum_P)

    def ahead_of(self, stamp: Stamp) -> FinishedAhead:
        """The finished pieces of the version that this attempt of a round leads to."""
        if self._ahead is None or self._ahead.stamp != stamp:
            self.make_room()
            self._ahead = FinishedAhead(stamp)
        return self._ahead

    def make_room(self) -> None:
        """Choose the memory of the next version, before the version is begun (again). The ranks'
        base must not change while they train from it, nor lent arrays; and no rank may take an
        incomplete version for a result."""
        self._ahead = None
        places = self._places
        is_kept = self.next_outer_P is self.base_P or self._loans.is_lent(self.next_outer_P)
        place = places.number(self.next_outer_P) if places is not None else None
        if places is not None and (is_kept or place is None):
            used = {places.number(self.outer_P), places.number(self.base_P)}
            place = next((place for place in self._unlent(places) if place not in used), None)
        if places is not None and place is not None:
            self.next_outer_P = places.outer[place]
            places.mark_torn(place)
        elif is_kept:
            self.next_outer_P = self._loans.fresh_like(self.outer_P)

    def room_for_momentum(self) -> F32:
        """The array for the next momentum: the present one, unless it is lent."""
        momentum_P, loans = self.momentum_P, self._loans
        return loans.fresh_like(momentum_P) if loans.is_lent(momentum_P) else momentum_P

    def take(self, outer_P: F32, momentum_P: F32) -> None:
        """Make these arrays the next version. This object owns `outer_P` from now on: the caller
        neither writes nor reads there. The momentum is copied: otherwise it would keep the memory
        of both for ever."""
        self._ahead, self.due = None, None
        self.next_outer_P, self.momentum_P = outer_P, self.room_for_momentum()
        self.momentum_P[:] = momentum_P

    def _unlent(self, places: SharedPlaces) -> list[int]:
        return [x for x in range(COPIES) if not self._loans.is_lent(places.outer[x])]

    def turn(self, version: int, lineage: int, digests: Mapping[int, bytes]) -> str:
        """Make the next version the present one. `digests`: those of its cells that are known; the
        momentum of all other cells must be made. Returns the state digest."""
        self.outer_P, self.next_outer_P = self.next_outer_P, self.outer_P
        if not self.compared:
            return self.pass_by(version, lineage)
        found = [
            digests.get(cell.start)
            or state_digests.cell_digest(self.outer_P[cell], self.momentum_P[cell])
            for cell in state_digests.cells(self.outer_P.size)
        ]
        return self._now(OuterVersion(version, lineage, state_digests.digest_of_cells(found)))

    def pass_by(self, version: int, lineage: int) -> str:
        """Name the present state after this version, without a change. Returns its digest."""
        assert not self.compared, "a round of all peers changes every state"
        return self._now(OuterVersion(version, lineage, gossip_pairs.state_digest(version)))

    def _now(self, version: OuterVersion) -> str:
        self.present, self._ahead = version, None
        return version.digest

    @property
    def is_shown(self) -> bool:
        """Whether the outer parameters are in a place that ranks can read."""
        return self._places is not None and self._places.number(self.outer_P) is not None

    def show(self) -> int:
        """The ranks continue with the outer parameters; returns their place. Most often they are in
        one already. If they were made in other memory, or came from another peer, they are copied
        to a place; then no step may be due."""
        places = self._places
        assert places is not None, "no rank has places to read"
        place = places.number(self.outer_P)
        if place is None:
            # Prefer a place without an unfinished next version. At most one place is lent.
            is_next = [self.next_outer_P is outer_P for outer_P in places.outer]
            place = min(self._unlent(places), key=is_next.__getitem__)
            places.mark_torn(place)
            places.outer[place][:] = self.outer_P
            if is_next[place]:
                self._ahead = None
            self.outer_P = places.outer[place]
        self._shown()
        return place

    def show_move(self) -> int:
        """The ranks add to their own parameters the change of the outer ones since the ranks' base;
        returns the place of this change."""
        assert self._places is not None, "no rank has places to read"
        operations.rebase(self.outer_P, self.base_P, self._places.move())
        self._shown()
        return MOVE

    def contributed(self) -> None:
        """The ranks have contributed, so they have taken all shown results but the last."""
        self._shown_results.contributed()

    def forget_places(self) -> None:
        """Free the places that no rank reads: the ranks neither have work that began there, nor
        have still to take a result there, and the place is neither lent nor being written."""
        places = self._places
        if places is None or not self._shown_results.earlier_are_taken or self._ahead is not None:
            return
        kept = (places.number(self.outer_P), places.number(self.base_P))
        for place in self._unlent(places):
            if place not in kept:
                places.free_place(place)

    def expect_next(self) -> None:
        """Allocate memory for the next version, which will be made soon."""
        places = self._places
        place = places.number(self.next_outer_P) if places is not None else None
        if places is not None and place is not None and self.next_outer_P is not self.base_P:
            places.expect(place)

    def _shown(self) -> None:
        """The ranks train from the present outer parameters from now on."""
        self.base_P = self.outer_P
        self._shown_results.shown()
