"""Checks log entries about the steps of a stepwise run against the state.

A part of entry_validation.py. Must NOT change anything, nor judge whether an entry is a good
decision (leader/step_views.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.messages import log_entries as e
from protocols.messages.step_progress import commits
from protocols.state.step_entries import begun, furthest_step, num_making, step_view

if TYPE_CHECKING:
    from protocols.state.run_state import RunState


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


def of_view(members: RunState, view: e.View) -> str:
    """Why this view cannot begin where the view before ended; "" if it can."""
    course = members.course
    last = course.step if not members.views else course.close and course.close.last_step
    if view.parts or last is None or view.first_round != (last + 1,):
        return f"has View {view.view} from step {view.first_round} on, {last} is the last one"
    return ""


def objection(members: RunState, body: e.StepCommit | e.Halt | e.Close) -> str:
    """Why this entry contradicts the state; "" if it does not."""
    kind = type(body).__name__
    if not members.stepwise or not members.views:
        return f"has a {kind} without steps"
    if body.view != members.views[-1].view:
        return f"has a {kind} of view {body.view}, the newest one is {members.views[-1].view}"
    match body:
        case e.StepCommit():
            return _commit(members, body)
        case e.Halt(without=without):
            if not set(without) <= members.receivers.keys():
                return "stops to exclude peers that are not there"
            return "" if without or not members.course.halted else "stops a stopped view"
        case e.Close():
            return _close(members, body)


def _commit(members: RunState, commit: e.StepCommit) -> str:
    assert members.run is not None
    step = commit.upto_step
    if step <= members.course.step or step_view(members, step) is None:
        return f"commits step {step} out of order"
    if step > members.run.outer_steps or not commits(members.run, step) or not commit.state_digest:
        return f"commits step {step}, which is no step to commit"
    return ""


def _close(members: RunState, close: e.Close) -> str:
    course = members.course
    if not course.halted or course.close is not None:
        return "ends a view that runs, or has ended"
    # Committed steps are never taken back, nor the step with which the whole roster began.
    if close.last_step < max(course.step, begun(members) if num_making(members) else 0):
        return f"ends view {close.view} with step {close.last_step}, later ones are agreed"
    assert members.run is not None
    if close.last_step > min(members.run.outer_steps, furthest_step(members)):
        return f"ends view {close.view} with step {close.last_step}, which no peer can have reached"
    if any(provider.holder not in members.members for provider in close.providers):
        return "names providers that are not there"
    return ""
