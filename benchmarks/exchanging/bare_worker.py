"""The bytes and the arithmetic of a lowcomm exchange, and nothing else.

One process a peer, with lowcomm's compiled loops and plain sockets: no daemon beside a rank, no
log, no commit, no attempts, no handling of lost peers or invalid data. The time that lowcomm takes
beyond this one is the cost of these. Must NOT be used as a system: if one process dies, all fail.
"""

import selectors
import socket
from itertools import pairwise

import numpy as np

from benchmarks.exchanging.worker import F32, Marks, WorkerTask, connected, main, now, signed_source
from lowcomm.numerics import operations
from peers.connections import RECEIVE_BYTES_MAX, SEND_BYTES_MAX
from peers.exchange import digest_of, spans
from peers.sockets import tune

AHEAD = 2
"""Pieces of a contribution that may be under way to an owner beyond those that came back from it. A
small window keeps the data to sum in a cache, and not in the kernel's buffers."""


class BareLink:
    """The link with one other peer: it owns `theirs`, this peer owns `ours`, both cut into
    pieces."""

    def __init__(self, connection: socket.socket, theirs: slice, ours: slice) -> None:
        self.connection = connection
        self.theirs, self.ours = _pieces(theirs), _pieces(ours)
        self.slice_P = np.zeros(ours.stop - ours.start, np.float32)
        """The other peer's contribution to our part, which we sum."""
        self.begin()

    def begin(self) -> None:
        self.contributed = self.returned = 0
        """Number of pieces of `theirs` that we sent, and that came back as results."""
        self.came = self.sent = 0
        """Number of pieces of `ours` that came as contribution, and that we sent as results."""
        self.outgoing: list[memoryview] = []
        self.incoming: tuple[bool, memoryview] | None = None
        """Whether the arriving piece is a result, and the part of its memory still to be filled."""

    @property
    def over(self) -> bool:
        every = (self.contributed, self.returned) == (len(self.theirs),) * 2
        return every and (self.came, self.sent) == (len(self.ours),) * 2 and not self.outgoing


class Bare:
    """A mean computed by part owners, and a step by it; the result is copied into a separate
    buffer."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        borders = [task.elements * node // task.peers for node in range(task.peers + 1)]
        parts = [slice(*pair) for pair in pairwise(borders)]
        self._mine = _pieces(parts[task.node])
        self._outer_P, self._next_P, self._result_P, self._mean_P, self._local_P = (
            np.zeros(task.elements, np.float32) for _ in range(5)
        )
        self._summed = 0
        """Number of pieces of our part that are summed."""
        self._weights, self._inverse = operations.mean_weights((1,) * task.peers)
        self._links = {
            other: BareLink(connection, parts[other], parts[task.node])
            for other, connection in connected(task, "bare").items()
        }
        for link in self._links.values():
            tune(link.connection, bulk=True)
            link.connection.setblocking(False)

    def prepare(self, sign: int) -> None:
        """Set the trained parameters to minus the contribution; the outer parameters are 0."""
        signed_source(self._task.source, self._local_P, -sign)
        self._summed = 0
        for link in self._links.values():
            link.begin()

    def exchange(self) -> Marks:
        handed = now()
        self._move()
        moved = now()
        operations.copy(self._next_P, self._result_P, of_bytes=self._result_P.nbytes)
        return Marks(
            handed=handed,
            received=now(),
            contributors=self._task.peers,
            reduced=moved,
            data_path_s=moved - handed,
        )

    def mean_block(self, block: slice) -> F32:
        return self._outer_P[block] - self._result_P[block]

    def _move(self) -> None:
        with selectors.DefaultSelector() as selector:
            waits: dict[int, int] = {}
            while not all(link.over for link in self._links.values()):
                for node, link in self._links.items():
                    wanted = selectors.EVENT_READ | selectors.EVENT_WRITE * self._has_more(link)
                    if node not in waits:
                        selector.register(link.connection, wanted, link)
                    elif waits[node] != wanted:
                        selector.modify(link.connection, wanted, link)
                    waits[node] = wanted
                for key, events in selector.select():
                    if events & selectors.EVENT_READ:
                        self._receive(key.data)
                    if events & selectors.EVENT_WRITE:
                        self._send(key.data)

    def _has_more(self, link: BareLink) -> bool:
        return bool(link.outgoing) or link.sent < self._summed or self._may_contribute(link)

    def _may_contribute(self, link: BareLink) -> bool:
        window = link.returned + AHEAD if link.returned else len(link.theirs)
        return link.contributed < min(window, len(link.theirs))

    def _send(self, link: BareLink) -> None:
        budget = SEND_BYTES_MAX
        while budget > 0:
            if not link.outgoing and not self._next(link):
                return
            try:
                count = link.connection.sendmsg(link.outgoing)
            except BlockingIOError:
                return
            budget -= count
            while link.outgoing and count >= link.outgoing[0].nbytes:
                count -= link.outgoing.pop(0).nbytes
            if count:
                link.outgoing[0] = link.outgoing[0][count:]

    def _next(self, link: BareLink) -> bool:
        """Take the next piece to send; results go first, as in lowcomm."""
        if link.sent < self._summed:
            kind, piece_P = b"r", self._mean_P[link.ours[link.sent]]
            link.sent += 1
        elif self._may_contribute(link):
            here = link.theirs[link.contributed]
            kind, piece_P = b"c", self._difference(here)
            link.contributed += 1
        else:
            return False
        link.outgoing = [memoryview(kind), piece_P.data.cast("B")]
        return True

    def _difference(self, here: slice) -> F32:
        """Compute the pseudo-gradient of this range, in place of the trained parameters."""
        local_P = self._local_P[here]
        operations.pseudo_gradient(self._outer_P[here], local_P, local_P)
        return local_P

    def _receive(self, link: BareLink) -> None:
        budget = RECEIVE_BYTES_MAX
        try:
            while budget > 0:
                if link.incoming is None:
                    kind = link.connection.recv(1)
                    assert kind, "the other end has closed"
                    link.incoming = kind == b"r", self._room(link, is_result=kind == b"r")
                is_result, room = link.incoming
                count = link.connection.recv_into(room)
                budget -= count
                link.incoming = is_result, room[count:]
                if count == room.nbytes:
                    link.incoming = None
                    self._arrived(link, is_result=is_result)
        except BlockingIOError:
            return

    def _room(self, link: BareLink, *, is_result: bool) -> memoryview:
        if is_result:
            return self._mean_P[link.theirs[link.returned]].data.cast("B")
        here, first = link.ours[link.came], link.ours[0].start
        return link.slice_P[here.start - first : here.stop - first].data.cast("B")

    def _arrived(self, link: BareLink, *, is_result: bool) -> None:
        if is_result:
            here = link.theirs[link.returned]
            link.returned += 1
            digest_of(self._mean_P[here].data)
            self._step(here)
            return
        link.came += 1
        while self._summed < min(other.came for other in self._links.values()):
            self._sum(self._mine[self._summed])
            self._summed += 1

    def _sum(self, here: slice) -> None:
        first = self._mine[0].start
        terms: list[F32] = []
        for node in range(self._task.peers):
            if node == self._task.node:
                terms.append(self._difference(here))
            else:
                slice_P = self._links[node].slice_P
                terms.append(slice_P[here.start - first : here.stop - first])
        mean_P = self._mean_P[here]
        operations.scaled_mean(terms, self._weights, self._inverse, mean_P)
        assert operations.all_finite(mean_P)
        digest_of(mean_P.data)
        self._step(here)

    def _step(self, here: slice) -> None:
        next_P = self._next_P[here]
        operations.descent(self._outer_P[here], self._mean_P[here], next_P, lr=1.0)
        digest_of(next_P.data)


def _pieces(part: slice) -> list[slice]:
    first = part.start
    return [slice(first + start, first + stop) for start, stop in spans(part.stop - first)]


if __name__ == "__main__":
    main(Bare)
