"""The samples of one simulated node: leased with the anchor's results, drawn step by step.

The node's half works as lowcomm/rank_control/rank_rounds.py; the ranks' half is the real code. Must
NOT know the value of a sample, nor which samples are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lowcomm.data import NodeLease
from protocols.types import Samples, count


@dataclass(slots=True)
class SimulatedLeases:
    """The node's and the ranks' leases. A result of the anchor waits until the lease has enough
    samples; until then, the ranks draw from the lease of the last result."""

    interval: int
    """Number of samples that the ranks need between two results of the anchor."""
    lease: Samples = ()
    """The samples of the last Leased command of the core."""
    _waiting: list[tuple[Callable[[], None], Callable[[], bool]]] = field(
        default_factory=list[tuple[Callable[[], None], Callable[[], bool]]]
    )
    """Results of the anchor that wait for enough samples: (post, is_last)."""
    _ranks: NodeLease = field(default_factory=NodeLease)

    # The node -------------------------------------------------------------------------------

    def leased(self, samples: Samples) -> None:
        """Set the samples that the ranks may draw from the next result on."""
        self.lease = samples
        self.post_waiting()

    def post(self, post: Callable[[], None], is_last: Callable[[], bool]) -> None:
        """Give the ranks a result of the anchor by calling `post`. If the lease has too few samples
        for the interval after it, and some fragment still needs steps, wait for more."""
        if count(self.lease) < self.interval and not is_last():
            self._waiting.append((post, is_last))
        else:
            post()

    def post_waiting(self) -> None:
        """Try again to post the waiting results, after a change of what they wait for."""
        waiting, self._waiting = self._waiting, []
        for post, is_last in waiting:
            self.post(post, is_last)

    def drop_all(self) -> None:
        """Drop everything: the ranks are gone."""
        self._waiting.clear()
        self._ranks = NodeLease()

    # The ranks ------------------------------------------------------------------------------

    def take(self, samples: Samples, *, anew: bool, last: bool) -> None:
        """Take the lease of a result of the anchor. `anew`: the steps since the last contribution
        are thrown away. `last`: no later result brings samples."""
        if anew:
            self._ranks.forget()
        self._ranks.renew(samples, last=last)

    @property
    def unused(self) -> int:
        """Number of samples that no step has used yet."""
        return self._ranks.unused

    def draw(self, wanted: int) -> list[int]:
        """Draw the lowest samples for the step that begins. Raises LowcommError if too few are
        left."""
        return self._ranks.draw(wanted)

    def count_step(self) -> None:
        """Count the samples of the oldest batch as used by a step."""
        self._ranks.step()

    def contribute(self) -> Samples:
        """The samples that steps have used since the last call."""
        return self._ranks.contribute()
