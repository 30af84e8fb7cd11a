"""The node's ranks in a stepwise run: gives them the orders of the step shell.

Must NOT decide which step is made or applied (protocols/steps).
"""

from dataclasses import replace

from lowcomm.outer_state.step_replica import StepReplica
from lowcomm.rank_control.context import DaemonContext
from peers.ipc import Order, StepSlots
from peers.ranks import RankGroup
from peers.steps import StepShell


class RankSteps:
    """The ranks as peers.steps.step_shell sees them: implements its StepRanks."""

    def __init__(self, context: DaemonContext, group: RankGroup) -> None:
        self.shell: StepShell | None = None
        """The shell of the stepwise run; None in a run of rounds, and before the run is known."""
        self.finishing = False
        """The ranks have the order to finish."""
        self._context = context
        self._group = group

    def make_orders(self, replica: StepReplica) -> StepShell:
        """Create the object that gives our ranks orders in a stepwise run."""
        context = self._context
        self.shell = StepShell(
            context.core, work=replica, ranks=self, shell=context.driver, based=self._based
        )
        return self.shell

    def _based(self, step: int) -> None:
        context = self._context
        if self._is_kept(step) and context.replica is not None:
            context.checkpoint_schedule.begin_writing(context.core, context.replica)

    def _is_kept(self, step: int) -> bool:
        """Whether a checkpoint is made of the state after this step, once it is committed."""
        replica = self._context.replica
        assert isinstance(replica, StepReplica), "a run of rounds has no steps"
        schedule = self._context.checkpoint_schedule
        copies, rest = divmod(step, replica.method.snapshot_every_steps)
        return not rest and (schedule.is_regular(copies) or schedule.is_requested(step))

    @property
    def memory(self) -> StepSlots:
        assert self._group.slots is not None, "the ranks have no memory yet"
        return StepSlots(self._group.slots)

    def order(self, order: Order) -> bool:
        if order.kind == "apply" and self._is_kept(order.step):
            schedule = self._context.checkpoint_schedule
            kept = schedule.rank_state(order.step)
            order = replace(order, snapshot=str(kept))
        given = self._group.order(order)
        self.finishing = self.finishing or (given and order.kind == "finish")
        return given
