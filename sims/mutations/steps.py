"""Planted bugs in stepwise runs; seeds of sims.step_sweep catch them.

As rounds.py for rounds. Must NOT run anything (mutants.py).
"""

from protocols.leader.step_views import StepViews
from protocols.state.step_entries import forget_views, step_view
from protocols.steps.bounds import StepBounds
from protocols.steps.own_payloads import OwnPayloads
from sims.mutations.patch import Edit, Mutant

ALL_REPORTED = """\
if owner is None or owner.view != view or not roster <= states.keys():
            continue  # The view ended before; or a peer is not there yet.
        digests = {states[peer] for peer in roster}"""
MOST_REPORTED = """\
if owner is None or owner.view != view or 2 * len(roster & states.keys()) <= len(roster):
            continue
        digests = {states[peer] for peer in roster & states.keys()}"""

STEP_MUTANTS = (
    Mutant(
        "goes-on-after-its-report",
        "A survivor completes a step that it reported as incomplete: the Close may be below it.",
        Edit(
            StepBounds.frontier,
            "return max(progress.step, completed, self.begun)",
            "return self.run.outer_steps",
        ),
    ),
    Mutant(
        "closes-below-a-completed-step",
        "A peer that completed the step keeps it; the others make another step of that number.",
        Edit(StepViews._last_step, "max(completed, step_progress.step,", "max(step_progress.step,"),
    ),
    Mutant(
        "takes-a-late-payload-of-a-closed-view",
        "Peers that still got the payload complete a step after the Close of its view.",
        Edit(step_view, "return None if ended else view", "return view"),
        Edit(StepBounds.find_last, "return agreed.close.last_step", "return self.run.outer_steps"),
    ),
    Mutant(
        "commits-on-a-majority-of-digests",
        "A step is agreed that a member of the roster may never complete.",
        Edit(StepViews.next_commit, ALL_REPORTED, MOST_REPORTED),
    ),
    Mutant(
        "a-differing-state-goes-on",
        "No peer is excluded, and no step is ever agreed on again.",
        Edit(StepViews._differing, "if wrong:", "if False:"),
    ),
    Mutant(
        "keeps-a-payload-of-a-batch-that-is-anothers",
        "Its view ended first: two peers train on that batch, and none on this peer's.",
        Edit(
            OwnPayloads.make,
            "own.step == step and own.batch == batch",
            "own.step == step",
        ),
    ),
    Mutant(
        "forgets-what-old-views-were-made-of",
        "The run trains again on the batches of the steps of forgotten views.",
        Edit(forget_views, "drawn=drawn", "drawn=run_state.step_progress.drawn"),
    ),
)
