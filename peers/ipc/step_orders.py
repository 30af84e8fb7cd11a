"""Orders of a daemon to its ranks in a stepwise run.

The daemon gives one order at a time; every rank obeys it and reports that. The data of an order lie
in shared memory (`StepSlots`). Must NOT wait, nor know what bytes mean.
"""

from dataclasses import dataclass
from typing import Literal

from peers.ipc.shared_memory import Slots, SlotsShape

OrderKind = Literal["show", "load", "make", "apply", "finish"]
_STEP, _STATE = 0, 1
"""The slots of a stepwise run, in place of fragments."""


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
    """With "make", or the order that follows: the batch of the run of which the payload is made."""
    show: bool = False
    """With "apply": write the state after it."""
    counted: bool = False
    """With "apply": the last payload of these ranks is in the mean. Not if it did not count, for
    example since it was not finite."""
    snapshot: str = ""
    """With "apply": a directory in which to keep this node's own state after the step; else ""."""
    evaluate: bool = False
    """With "finish": evaluate the model first."""
    go_on: bool = False
    """With "apply": obey `following(this)` too after reporting this one."""


def following(order: Order) -> Order:
    """The order that ranks go on to by themselves, so that they are woken once in a step."""
    assert order.go_on, "it is the last one for now"
    return Order(number=order.number + 1, kind="make", step=order.step + 1, batch=order.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """rank -> daemon: this rank's part of the order is done."""

    number: int


def step_shape(ranks: int, *, step_bytes: int, state_bytes: int) -> SlotsShape:
    """The shared memory of a stepwise run; `step_bytes`: the payload or the mean, whichever is
    larger. There is one slot of each, since a payload is written only after the step of the last
    one."""
    return SlotsShape(ranks, (step_bytes, state_bytes), copies=1)


class StepSlots:
    """Views of a stepwise run's shared memory, on both sides."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def payload(self) -> memoryview:
        """The payload, of which each rank writes a part: uint8 [step_bytes], as the method defines
        it."""
        return self._slots.contribution(_STEP)

    @property
    def mean(self) -> memoryview:
        """The mean, written by the daemon: uint8 [step_bytes], beginning with fp32 values."""
        return self._slots.result(_STEP, 0)

    @property
    def shown(self) -> memoryview:
        """The state that ranks write: uint8 [state_bytes]."""
        return self._slots.contribution(_STATE)

    @property
    def given(self) -> memoryview:
        """The state that ranks take: uint8 [state_bytes]."""
        return self._slots.result(_STATE, 0)
