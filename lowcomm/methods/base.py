"""What a method is, as far as the daemon sees it.

A method's file says what is contributed, when, in which codecs, and what the outer step is. Must
NOT import torch: the half that runs in the ranks is `lowcomm/trainer.py`, for all methods.
"""

from typing import Protocol

from lowcomm.codecs.base import Codec
from lowcomm.outer import F32


class StepMethod(Protocol):
    """A per-step method: what the nodes exchange at every step. Holds the agreed configuration,
    never the state of a run."""

    @property
    def name(self) -> str: ...

    @property
    def payload_codec(self) -> Codec:
        """How payloads travel; each has as many elements as the model."""
        ...

    @property
    def state_arrays(self) -> tuple[str, ...]:
        """The fp32 arrays of the model's size that are the run's state, in the order in which they
        lie one behind the other."""
        ...


class Method(Protocol):
    """Pure: holds the agreed configuration, never the state of a run."""

    @property
    def name(self) -> str: ...

    @property
    def inner_steps(self) -> int:
        """Inner steps between two contributions to one fragment (H)."""
        ...

    @property
    def fragments(self) -> int:
        """How many; they are numbered from 0."""
        ...

    def fragment_of(self, parameter: str) -> int:
        """The fragment that holds the parameter of this name."""
        ...

    @property
    def contribution_codec(self) -> Codec:
        """How pseudo-gradients travel to part owners."""
        ...

    @property
    def result_codec(self) -> Codec | None:
        """How their mean travels back. None: by gather, everybody gets what was contributed and
        makes the mean."""
        ...

    @property
    def feedback_decay(self) -> float:
        """What of the error of a contribution is left in the next one; 0: no error feedback."""
        ...

    @property
    def state_arrays(self) -> tuple[str, ...]:
        """The fp32 arrays of a fragment's size that the daemon keeps, in the digest's order."""
        ...

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        """Write to the last two what one round makes of the first two: the same bits everywhere.
        Both momenta are empty if `state_arrays` names none.

        `mean_P` is the decoded mean of pseudo-gradients (outer minus local). Nothing else changes,
        so that it can be made before the round is known to be committed. Elementwise: a piece gives
        the bits of the whole.
        """
        ...
