"""A rank of a stepwise run, as far as it needs no torch: it obeys the daemon's orders.

Between two payloads any number of orders may come: the step that everybody completed, or another
state and the steps since, after a loss. Must NOT know what the state is (a StepState does), nor
decide when anything happens.
"""

from typing import Protocol

from lowcomm.training.attach import Peer
from peers.ipc.step_orders import Order, following
from protocols.types.sample_ranges import SampleRange


class StepState(Protocol):
    """This rank's part of the run's state, and what it makes of it. Buffers are the whole node's:
    each rank reads and writes its own elements."""

    def write_payload(self, payload: memoryview) -> None:
        """What this step would change, as the method's exchange has it: uint8."""
        ...

    def apply(self, mean: memoryview, step: int, *, counted: bool) -> None:
        """Complete the step with the mean of all nodes' payloads, the same bits everywhere: fp32
        [elements], and maybe more. `counted`: it is also of what we wrote last, which it is not if
        that was not finite."""
        ...

    def keep(self, directory: str, step: int) -> None:
        """Keep there what is this node's own after this step, and in no state, if anything is."""
        ...

    def write_state(self, state: memoryview) -> None: ...

    def read_state(self, state: memoryview) -> None:
        """It replaces ours."""
        ...


class StepRank:
    """`follow`, then make a payload and `hand_over`, until `peer.finished`."""

    def __init__(self, peer: Peer, state: StepState) -> None:
        """After the peer has joined."""
        self.step = 0
        """The one whose payload is wanted, counted from 1."""
        self._peer = peer
        self._state = state
        self._wanted: Order | None = None
        self._obeyed = 0

    def hand_over(self) -> None:
        """Our payload of this step is made; obey until the next one is wanted."""
        assert self._wanted is not None, "follow first"
        client = self._peer.client
        self._state.write_payload(client.memory.payload)
        self._done(self._wanted)
        self.follow()

    def follow(self) -> None:
        """Until a payload is wanted, or the run is over."""
        peer, memory = self._peer, self._peer.client.memory
        self._wanted = None
        while self._wanted is None and not peer.finished:
            order = peer.client.next_order()
            match order.kind:
                case "make":
                    self._want(order)
                    return
                case "load":
                    self._state.read_state(memory.given)
                case "apply":
                    self._state.apply(memory.mean, order.step, counted=order.counted)
                    if order.snapshot:
                        self._state.keep(order.snapshot, order.step)
                case "finish":
                    peer.finish(evaluate=order.evaluate)
                    return
                case "show":
                    pass
            if order.show or order.kind == "show":
                self._state.write_state(memory.shown)
            self._done(order)
            if order.go_on:
                self._want(following(order))

    def _want(self, order: Order) -> None:
        self._wanted, self.step = order, order.step
        self._lease(order.batch)

    def _done(self, order: Order) -> None:
        self._obeyed += 1
        self._peer.client.count_step(self._obeyed)
        self._peer.client.obeyed(order)

    def _lease(self, number: int) -> None:
        """What this step trains on, and nobody else (I10): a batch of the endless sequence
        (lowcomm/data/batches.py)."""
        lease, batch = self._peer.lease, self._peer.run.data.batch
        lease.step()
        lease.contribute()
        lease.renew((SampleRange(number * batch, (number + 1) * batch),))
