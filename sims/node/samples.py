"""The samples of one simulated node: handed out with the anchor's results, drawn step by step.

The node's half does as lowcomm/daemon/rank_control.py, the ranks' half is the real one. Must NOT
know what a sample is worth, nor what is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lowcomm.data.lease import NodeLease
from protocols.types.errors import LowcommError
from protocols.types.sample_ranges import Samples, count


@dataclass(slots=True)
class Feed:
    """A result of the anchor that has too few samples with it waits; ranks draw from the last."""

    interval: int
    """How many samples the ranks need between two results of the anchor."""
    lease: Samples = ()
    """The core's last word."""
    _waiting: list[tuple[Callable[[], None], Callable[[], bool]]] = field(
        default_factory=list[tuple[Callable[[], None], Callable[[], bool]]]
    )
    """Results that the ranks get once there is enough."""
    _ranks: NodeLease = field(default_factory=NodeLease)

    # The node -------------------------------------------------------------------------------

    def leased(self, samples: Samples) -> None:
        """What the ranks may draw is another set now, from the next result on."""
        self.lease = samples
        self.post_waiting()

    def post(self, post: Callable[[], None], is_last: Callable[[], bool]) -> None:
        """Give the ranks a result of the anchor by calling `post`: now, or once there are samples
        for the interval after it, unless no fragment needs steps from then on."""
        if count(self.lease) < self.interval and not is_last():
            self._waiting.append((post, is_last))
        else:
            post()

    def post_waiting(self) -> None:
        """Something changed of what they wait for."""
        waiting, self._waiting = self._waiting, []
        for post, is_last in waiting:
            self.post(post, is_last)

    def stop(self) -> None:
        """The ranks are gone."""
        self._waiting.clear()
        self._ranks = NodeLease()

    # The ranks ------------------------------------------------------------------------------

    def take(self, samples: Samples, *, anew: bool, last: bool) -> None:
        """A result of the anchor is taken. `anew`: the steps since the last contribution are
        thrown away. `last`: it has no other."""
        if anew:
            self._ranks.forget()
        self._ranks.renew(samples, last=last)

    def draw(self, wanted: int) -> list[int] | None:
        """For the step that begins: the lowest ones. None: there are too few left."""
        try:
            return self._ranks.draw(wanted)
        except LowcommError:
            return None

    def step(self) -> None:
        """The step is made."""
        self._ranks.step()

    def contribute(self) -> Samples:
        """What the steps used since the last time."""
        return self._ranks.contribute()
