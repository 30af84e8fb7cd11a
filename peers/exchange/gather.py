"""Results on their way to us: whose contributions they are, our own among them, are they sound?

In a gather our own slice need not travel: we put it there from what we encoded, and the digest
covers it like all others. Must NOT give memory to a result (inbound.py), nor look into one: the
work does.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from peers.exchange.interfaces import Bytes
from peers.exchange.payload_keys import ResultKey
from peers.exchange.pieces import PIECE_ELEMENTS, Payload
from protocols.messages.peer import ResultChunk


class ResultOwner(Protocol):
    """What is needed to tell. No method may raise or block."""

    def layers(self, contributors: int) -> int:
        """How many a result of so many contributions has."""
        ...

    def own_layer(self, key: ResultKey, payload: Payload) -> int | None:
        """Which slice of a gather is ours, and here; None: none."""
        ...

    def own_piece(self, key: ResultKey, payload: Payload, number: int) -> Bytes | None:
        """A piece of that slice; None: it is here no more."""
        ...

    def result_grew(self, key: ResultKey, payload: Payload, number: int) -> bool:
        """Another piece of a result is here, in all layers. False: it can be none."""
        ...


def arrived(
    owner: ResultOwner,
    key: ResultKey,
    chunk: ResultChunk,
    payload: Payload,
    coming: Callable[[], Iterable[int]],
) -> bool:
    """A chunk of a result is at its place: do what follows. False: it is none. `coming`: in which
    layers links still write chunks."""
    numbers: Iterable[int] = [chunk.start // PIECE_ELEMENTS]
    if chunk.contributors and not payload.terms:
        payload.terms = chunk.contributors
        numbers = range(len(payload) // payload.layers)  # What came before it had no meaning.
        payload.own = owner.own_layer(key, payload) if chunk.left_out else None
        if chunk.left_out and (payload.own is None or payload.layers == 1):
            return False  # Others will send all of it; and of a sum nothing is left out.
        if payload.own is not None and payload.own in coming():
            return False  # What we put there would be written over.
    if not payload.terms:
        return payload.missing > 0
    if payload.layers != owner.layers(len(payload.terms)):
        return False
    if not _put_own(owner, key, payload, numbers):
        return False
    grown = [number for number in numbers if payload.has_piece(number)]
    return all(owner.result_grew(key, payload, number) for number in grown)


def _put_own(owner: ResultOwner, key: ResultKey, payload: Payload, numbers: Iterable[int]) -> bool:
    """Into these pieces, where all the others' slices are. Not earlier: what an owner has not got
    of our contribution may not be encoded yet. False: it is not here any more."""
    for number in numbers:
        if payload.own is not None and payload.lacks_own(number):
            piece = owner.own_piece(key, payload, number)
            if piece is None:
                return False
            payload.add_own(number, piece)
    return True
