"""Arriving results: checks their contributors and pieces, and fills in our own slice of a gather.

In a gather our own slice is not sent to us: it is copied from our encoded contribution, and the
digest covers it as all others. Must NOT give memory to a result (inbound.py), nor look into one
(RoundWork).
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from peers.exchange.interfaces import Bytes
from peers.exchange.payload_keys import ResultKey
from peers.exchange.pieces import PIECE_ELEMENTS, Payload
from protocols.messages import ResultChunk


class ResultOwner(Protocol):
    """What these functions need. No method may raise or block."""

    def layers(self, fragment: int, contributors: int) -> int:
        """Number of layers of a result of so many contributions to this fragment."""
        ...

    def own_layer(self, key: ResultKey, payload: Payload) -> int | None:
        """Index of our own slice in a gather, if it is here; else None."""
        ...

    def own_piece(self, key: ResultKey, payload: Payload, number: int) -> Bytes | None:
        """A piece of that slice; None if it is not here any more."""
        ...

    def result_grew(self, key: ResultKey, payload: Payload, number: int) -> bool:
        """Another piece of a result is here, in all layers. False if it is invalid."""
        ...


def arrived(
    owner: ResultOwner,
    key: ResultKey,
    chunk: ResultChunk,
    payload: Payload,
    coming: Callable[[], Iterable[int]],
) -> bool:
    """A chunk of a result is in its place: process it. False if the result is invalid. `coming`:
    layers to which connections are still writing."""
    numbers: Iterable[int] = [chunk.start // PIECE_ELEMENTS]
    if chunk.contributors and not payload.terms:
        payload.terms = chunk.contributors
        # Earlier chunks could not be processed without it.
        numbers = range(len(payload) // payload.layers)
        payload.own = owner.own_layer(key, payload) if chunk.left_out else None
        if chunk.left_out and (payload.own is None or payload.layers == 1):
            return False  # Other peers will send all of it; a sum has no layers to leave out.
        if payload.own is not None and payload.own in coming():
            return False  # Our copy would be overwritten.
    if not payload.terms:
        return payload.missing > 0
    if payload.layers != owner.layers(key.stamp.fragment, len(payload.terms)):
        return False
    if not _put_own(owner, key, payload, numbers):
        return False
    grown = [number for number in numbers if payload.has_piece(number)]
    return all(owner.result_grew(key, payload, number) for number in grown)


def _put_own(owner: ResultOwner, key: ResultKey, payload: Payload, numbers: Iterable[int]) -> bool:
    """Copy our own slice into these pieces, once all other slices are there: before, our own may
    not be encoded yet. False if it is not here any more."""
    for number in numbers:
        if payload.own is not None and payload.lacks_own(number):
            piece = owner.own_piece(key, payload, number)
            if piece is None:
                return False
            payload.add_own(number, piece)
    return True
