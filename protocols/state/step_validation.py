"""Checks log entries about the steps of a stepwise run against the state.

A part of entry_validation.py. Must NOT change anything, nor judge whether an entry is a good
decision (leader/step_views.py).
"""

from __future__ import annotations

from protocols.messages import log_entries as e
from protocols.messages.step_progress import commits
from protocols.state.run_state import RunState
from protocols.state.step_entries import begun, furthest_step, num_making, step_view


def of_run(run: e.Run) -> str:
    """Why the intervals of commits and copies of a stepwise run are wrong; "" if they are not, or
    the run has rounds."""
    commit, snapshot = run.commit_every_steps, run.snapshot_every_steps
    if not commit:
        return "begins with a Run that copies a state it never commits" if snapshot else ""
    if len(run.fragment_elements) != 1:
        return "begins with a stepwise Run of several fragments"
    # A base is a state with a digest that the whole roster reported: there is one at commits only.
    rhythm = snapshot >= commit and snapshot % commit == 0
    return "" if rhythm else "begins with a stepwise Run with copies that fall between its commits"


def of_view(run_state: RunState, view: e.View) -> str:
    """Why this view cannot begin where the view before ended; "" if it can."""
    if run_state.orders.paused is not None:
        return f"has View {view.view}, but the run is paused"
    step_progress = run_state.step_progress
    last = (
        step_progress.step
        if not run_state.views
        else step_progress.close and step_progress.close.last_step
    )
    if view.parts or last is None or view.first_round != (last + 1,):
        return f"has View {view.view} from step {view.first_round} on, {last} is the last one"
    return ""


def objection(run_state: RunState, body: e.StepCommit | e.Halt | e.Close) -> str:
    """Why this entry contradicts the state; "" if it does not."""
    kind = type(body).__name__
    if not run_state.stepwise or not run_state.views:
        return f"has a {kind} without steps"
    if body.view != run_state.views[-1].view:
        return f"has a {kind} of view {body.view}, the newest one is {run_state.views[-1].view}"
    match body:
        case e.StepCommit():
            return _commit(run_state, body)
        case e.Halt(without=without):
            if not set(without) <= run_state.receivers.keys():
                return "stops to exclude peers that are not there"
            return "" if without or not run_state.step_progress.halted else "stops a stopped view"
        case e.Close():
            return _close(run_state, body)


def _commit(run_state: RunState, commit: e.StepCommit) -> str:
    assert run_state.run is not None
    step = commit.upto_step
    if step <= run_state.step_progress.step or step_view(run_state, step) is None:
        return f"commits step {step} out of order"
    if (
        step > run_state.run.outer_steps
        or not commits(run_state.run, step)
        or not commit.state_digest
    ):
        return f"commits step {step}, which is no step to commit"
    return ""


def _close(run_state: RunState, close: e.Close) -> str:
    step_progress = run_state.step_progress
    if not step_progress.halted or step_progress.close is not None:
        return "ends a view that runs, or has ended"
    # Committed steps are never taken back, nor the step with which the whole roster began.
    if close.last_step < max(step_progress.step, begun(run_state) if num_making(run_state) else 0):
        return f"ends view {close.view} with step {close.last_step}, later ones are agreed"
    assert run_state.run is not None
    if close.last_step > min(run_state.run.outer_steps, furthest_step(run_state)):
        return f"ends view {close.view} with step {close.last_step}, which no peer can have reached"
    if any(provider.holder not in run_state.members for provider in close.providers):
        return "names providers that are not there"
    return ""
