"""Plain TCP: one connection for each pair, and every peer sends all of its values to all others.

With two peers each direction carries as many bytes as any exchange has to move. Must NOT import
anything of lowcomm.
"""

import selectors

import numpy as np

from benchmarks.exchanging.worker import F32, Marks, WorkerTask, connected, main, now, signed_source

RECEIVED_BYTES = 1 << 20


class Tcp:
    """The mean of all contributions, summed in the order of the nodes."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._values_P = np.zeros(task.elements, np.float32)
        self._mean_P = np.zeros(task.elements, np.float32)
        self._theirs: dict[int, F32] = {}
        self._links = connected(task, "tcp")
        for other, link in self._links.items():
            link.setblocking(False)
            self._theirs[other] = np.zeros(task.elements, np.float32)

    def prepare(self, sign: int) -> None:
        signed_source(self._task.source, self._values_P, sign)

    def exchange(self) -> Marks:
        handed = now()
        self._move()
        self._mean_P[:] = 0.0
        for node in range(self._task.peers):
            self._mean_P += self._theirs.get(node, self._values_P)
        self._mean_P /= self._task.peers
        received = now()
        return Marks(
            handed=handed, received=received, contributors=self._task.peers, reduced=received
        )

    def mean_block(self, block: slice) -> F32:
        return self._mean_P[block]

    def _move(self) -> None:
        """Send to all and receive from all, as each socket is ready."""
        size = self._values_P.nbytes
        sent, got = dict.fromkeys(self._links, 0), dict.fromkeys(self._links, 0)
        ours = self._values_P.data.cast("B")
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        with selectors.DefaultSelector() as selector:
            for other, link in self._links.items():
                selector.register(link, both, other)
            while selector.get_map():
                for key, events in selector.select():
                    other, link = key.data, self._links[key.data]
                    if events & selectors.EVENT_WRITE:
                        sent[other] += link.send(ours[sent[other] :])
                    if events & selectors.EVENT_READ:
                        room = self._theirs[other].data.cast("B")[got[other] :]
                        count = link.recv_into(room[:RECEIVED_BYTES])
                        assert count, "the other end has closed"
                        got[other] += count
                    left = selectors.EVENT_WRITE * (sent[other] < size)
                    left |= selectors.EVENT_READ * (got[other] < size)
                    if left:
                        selector.modify(link, left, other)
                    else:
                        selector.unregister(link)


if __name__ == "__main__":
    main(Tcp)
