"""What a daemon and its ranks say to each other in a stepwise run, over the lifeline.

The daemon gives one order at a time, every rank obeys it and says so. What an order is about lies
in shared memory: `StepSlots` says where. Must NOT wait for anybody, nor know what bytes mean.
"""

from dataclasses import dataclass
from typing import Literal

from peers.ipc.shared_memory import Slots, SlotsShape

OrderKind = Literal["show", "load", "make", "apply", "finish"]
_STEP, _STATE = 0, 1
"""What lies where fragments do in a run of rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """daemon -> rank.

    "show": write your state. "load": take the state that lies there. "make": compute your payload
    of `step` and write it. "apply": complete `step` with the mean that lies there. "finish": the
    run is over, the last steps are applied.
    """

    number: int
    kind: OrderKind
    step: int
    batch: int = 0
    """Of "make", or of what follows: which one of the run the payload is made from."""
    show: bool = False
    """With "apply": write the state after it."""
    counted: bool = False
    """With "apply": the payload that these ranks made last is in the mean. Not if it was of no use,
    as one that is not finite."""
    snapshot: str = ""
    """With "apply": a directory. Keep there what is this node's own after the step."""
    evaluate: bool = False
    """With "finish": say first how good the model is."""
    go_on: bool = False
    """With "apply": when you have said that it is done, obey `following(this)` too."""


def following(order: Order) -> Order:
    """What ranks go on to without hearing of it: they need not be woken twice in a step."""
    assert order.go_on, "it is the last one for now"
    return Order(number=order.number + 1, kind="make", step=order.step + 1, batch=order.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """rank -> daemon: this rank's part of the order is done."""

    number: int


def step_shape(ranks: int, *, step_bytes: int, state_bytes: int) -> SlotsShape:
    """The shared memory of a stepwise run; `step_bytes`: what ranks write or the mean, whichever is
    more. One of each: nobody writes a payload before the step of the last one is over."""
    return SlotsShape(ranks, (step_bytes, state_bytes), copies=1)


class StepSlots:
    """Views of a stepwise run's shared memory, on both sides."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def payload(self) -> memoryview:
        """Ranks write their parts of it: uint8 [step_bytes], of which the method says the use."""
        return self._slots.contribution(_STEP)

    @property
    def mean(self) -> memoryview:
        """The daemon writes it: uint8 [step_bytes], beginning with the mean in fp32."""
        return self._slots.result(_STEP, 0)

    @property
    def shown(self) -> memoryview:
        """The state that ranks write: uint8 [state_bytes]."""
        return self._slots.contribution(_STATE)

    @property
    def given(self) -> memoryview:
        """The state that ranks take: uint8 [state_bytes]."""
        return self._slots.result(_STATE, 0)
