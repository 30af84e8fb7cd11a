"""How the ranks of a simulated run train. Must NOT know a node or a round."""

import random
from dataclasses import dataclass

STEP_SAMPLES = 2


LINES = (0, 0, 50_000_000, 12_000_000, 1_000_000)
"""Link speeds of a node, bytes per second, one of which is drawn. 0: the node's link was never
full, so its speed is not known."""


LINE_STEPS = 50
"""Inner steps for which a drawn link speed holds."""


@dataclass(frozen=True, slots=True)
class Training:
    """How the ranks of a run train; steps are inner steps."""

    inner_steps: int = 8
    """Inner steps between two contributions to one fragment."""
    fragments: int = 1
    overlap_steps: int = 0
    overlap_max_steps: int = 0
    discards_overlap: bool = False
    """If True, a counted result replaces the steps that the ranks have made since the contribution;
    else these steps are kept."""
    void_one_in: int = 0
    """One contribution in so many is rejected: it cannot be averaged. 0: none."""
    gossip: bool = False
    """In each round a node exchanges with one other node, and sends its parameters instead of their
    change."""
    answers: bool = False
    """Ranks contribute early, with the steps that they have made, as soon as other peers wait."""
    extremes: bool = False
    """Names, reasons and contributions are as large as the limits allow
    (simulator/limit_values.py)."""
    lines: int = 0
    """Seed from which the nodes' link speeds are drawn; 0: no node knows its speed."""

    @property
    def interval_samples(self) -> int:
        """Number of samples that the ranks draw between two results of the anchor, and from the
        contribution to the first of these until its result."""
        return (self.inner_steps + self.overlap_max_steps) * STEP_SAMPLES

    @property
    def slot_steps(self) -> int:
        """Inner steps between two boundaries."""
        return max(1, self.inner_steps // self.fragments)

    def line(self, name: str, step: int) -> int:
        """The node's link speed as it knows it at this inner step, bytes per second; 0: not
        known."""
        source = random.Random(f"{self.lines} {name} {step // LINE_STEPS}")  # noqa: S311
        return source.choice(LINES) if self.lines else 0
