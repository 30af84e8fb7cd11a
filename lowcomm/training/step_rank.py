"""A rank of a stepwise run, without torch: it obeys the daemon's orders.

Between two payloads any number of orders may come: to apply a step that all nodes completed, or,
after a loss, to load another state and apply the steps since. Must NOT know what the state is (a
StepState does), nor decide when anything happens.
"""

from typing import Protocol

from lowcomm.training.attach import Peer
from peers.ipc import Order, following
from protocols.types import SampleRange


class StepState(Protocol):
    """This rank's part of the run's state, and the arithmetic on it. Buffers are the whole node's:
    each rank reads and writes its own elements."""

    def write_payload(self, payload: memoryview) -> None:
        """Write this step's payload, uint8, in the format of the method's exchange."""
        ...

    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None:
        """Complete the step with the mean of all nodes' payloads: fp32 [elements], maybe followed
        by more, with the same bits on all nodes. `counted`: the mean contains the payload that this
        node wrote last. It does not if that payload was not finite."""
        ...

    def save_state(self, directory: str, step: int) -> None:
        """Save to `directory` the data after this step that only this node has, if any."""
        ...

    def write_state(self, state: memoryview) -> None: ...

    def read_state(self, state: memoryview) -> None:
        """Replace this rank's state by this one."""
        ...


class StepRank:
    """Obeys orders: call `follow`, then compute gradients and `hand_over`, until
    `peer.finished`."""

    def __init__(self, peer: Peer, state: StepState) -> None:
        """Call this after the peer has joined."""
        self.step = 0
        """The step of the payload that is needed, counted from 1."""
        self._peer, self._client = peer, peer.client
        self._state = state
        self._wanted: Order | None = None
        self._obeyed = 0

    def hand_over(self) -> None:
        """Write the payload of this step, then obey orders until the next one is needed."""
        assert self._wanted is not None, "follow first"
        client = self._peer.client
        self._state.write_payload(client.memory.payload)
        self._done(self._wanted)
        self.follow()

    def follow(self) -> None:
        """Obey orders until a payload is needed, or the run is over."""
        peer, client = self._peer, self._client
        memory = client.memory
        self._wanted = None
        while self._wanted is None and not peer.finished:
            order = client.next_order()
            match order.kind:
                case "make":
                    self._want(order)
                    return
                case "load":
                    self._state.read_state(memory.given)
                case "apply":
                    self._state.apply_mean(memory.mean, order.step, counted=order.counted)
                    if order.snapshot:
                        self._state.save_state(order.snapshot, order.step)
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
        self._client.count_step(self._obeyed)
        self._client.obeyed(order)

    def _lease(self, number: int) -> None:
        """Lease the samples of this step, which no other node trains on (I10): a batch of the
        endless sequence (lowcomm/data/batches.py)."""
        lease, run = self._peer.lease, self._peer.run
        batch = run.data.batch
        lease.step()
        lease.contribute()
        lease.renew((SampleRange(number * batch, (number + 1) * batch),))
