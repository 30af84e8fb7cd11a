"""The last committed copy of the state that a peer of a stepwise run keeps, and what its tentative
steps since have shown about it.

Must NOT decide what is committed (leader/step_views.py), nor which step comes next
(step_machine.py).
"""

from protocols.interface.commands import Command, Observation, ReleaseSteps
from protocols.messages import step_progress
from protocols.state.run_state import RunState
from protocols.state.step_entries import step_view

NONE = -1
"""There is no state."""


class KeptCopy:
    """The copy of one peer, also called the base."""

    def __init__(self, run_state: RunState) -> None:
        self.run_state = run_state
        self.step = NONE
        """The step of the copy; NONE if there is none."""
        self.digest = ""
        self.awaited: int | None = None
        """The step of the copy that a transfer brings."""
        self.damaged = False
        """The copy differs from its digest: it is not reported until it is replaced."""
        self.digests: dict[int, tuple[int, str]] = {}
        """By step since the copy, (view, state digest) of steps that all peers report."""
        self.strays = 0
        """How often our copy led to another state than the committed one. Once may be a memory
        error; then the copy is not given to others until it has led to a committed state."""
        self.reached = (0, NONE)
        """(view, step) of the furthest completed step, even if the ranks must make it again."""

    # Queries --------------------------------------------------------------------------------

    @property
    def strayed(self) -> bool:
        """The committed state cannot be reached from our copy."""
        return self.strays > 1

    @property
    def sure(self) -> bool:
        """Our copy is the run's state after its step, as far as this peer knows."""
        return not (self.strays or self.damaged)

    @property
    def completed(self) -> int:
        """The furthest completed step that the log has not made void."""
        view, step = self.reached
        owner = step_view(self.run_state, step)
        stands = step <= self.step or (owner is not None and owner.view == view)
        return max(step, self.step) if stands else self.step

    # Changes --------------------------------------------------------------------------------

    def stepped(self, view: int, step: int, digest: str) -> bool:
        """A step since the copy is completed. True if its state is to be reported."""
        if step > self.reached[1] or self.reached[0] != view:
            self.reached = (view, step)
        run = self.run_state.run
        assert run is not None, "there are no steps before the Run"
        if not step_progress.commits(run, step):
            return False
        self.digests[step] = (view, digest)
        return True

    def replace(self, step: int, digest: str) -> None:
        """Another copy is here, from this peer or from a donor."""
        same = (step, digest) == (self.step, self.digest)
        self.strays = min(self.strays, 1) if same else 0
        self.step, self.digest, self.damaged, self.awaited = step, digest, False, None
        self.reached, self.digests = (0, step), {}

    def clear(self) -> None:
        """The run went back to another version: there is no copy of it."""
        self.replace(NONE, "")
        self.strays = 0

    def void(self) -> None:
        """The steps since the last commit are void."""
        progress = self.run_state.step_progress
        agreed = progress.step
        self.digests = {step: made for step, made in self.digests.items() if step <= agreed}
        if self.reached[1] > max(agreed, self.step):
            self.reached = (0, self.step)

    def compare(self) -> tuple[bool, list[Command]]:
        """Compare our states with the committed ones. Also returns whether they differ, so that our
        steps are void."""
        run_state, differs, commands = self.run_state, False, list[Command]()
        agreed = run_state.step_progress
        for step, digest in ((agreed.base, agreed.base_digest), (agreed.step, agreed.digest)):
            made_in, ours = self.digests.get(step, (0, ""))
            if ours == digest and step > self.step:
                self.strays = 0
            elif ours not in ("", digest):
                owner = step_view(run_state, step)
                if owner is not None and owner.view == made_in:
                    text = f"our state at step {step} is not the one that is committed"
                    commands.append(Observation("diverged", text))
                    self.strays += 1
                differs = True
                self.digests.pop(step, None)
        return differs, commands

    def follow(self) -> list[Command]:
        """Take the state of a newly committed step as the copy, if the ranks have made it."""
        agreed = self.run_state.step_progress
        if not (agreed.base > self.step >= 0 and agreed.base in self.digests):
            return []
        self.step, (_, self.digest) = agreed.base, self.digests[agreed.base]
        self.strays = 0
        return [ReleaseSteps(self.step)]

    def prune(self) -> None:
        """Drop digests of steps before the copy."""
        for step in [step for step in self.digests if step < self.step]:
            del self.digests[step]
