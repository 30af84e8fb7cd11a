"""Planted bugs in acts that steer a run: which count, and what they do.

The sweep catches those of STEERING_MUTANTS. Each of STEERING_UNIT_MUTANTS breaks a unit test. Must
NOT run anything (mutants.py).
"""

from protocols.acts import authority, orders, settings
from protocols.acts.orders import Orders
from protocols.leader.decisions import Leader
from protocols.leader.voters import Voters
from protocols.peer import shutdown
from protocols.state import entry_validation, step_validation, transitions
from protocols.state.log_applier import LogApplier
from protocols.state.run_state import RunState
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

NUMBER = "entry.number != authority.number + 1 or "
LINEAGE = " or entry.lineage != authority.lineage"

STEERING_MUTANTS = (
    Mutant(
        "a-pause-holds-no-round-back",
        "A paused run goes on.",
        Edit(RunState.plan, "if any(round > last for", "if any(False for"),
    ),
    Mutant(
        "a-removed-node-runs-on",
        "It is out of the run, asks to get in again and again, and its leader never admits it.",
        Edit(shutdown.when_kicked, "if act is None:", "if True:"),
    ),
)

STEERING_UNIT_MUTANTS = (
    Mutant(
        "waits-until-a-removed-peer-goes",
        "The removed peer stays in the log until its connection ends.",
        Edit(Leader._remove_banned, "if kick is not None and", "if False and"),
        tests=of("leader/voters"),
    ),
    Mutant(
        "each-leader-is-the-first-to-go",
        "Two voters that are both to go hand the lead to each other for ever.",
        Edit(Voters.accept_acts, "goes(each[1].entry) == self.me", "0"),
        tests=of("leader/voters"),
    ),
    Mutant(
        "no-act-in-a-branch",
        "A voter that went on alone stays paused for ever.",
        Edit(Voters._objection, "(isinstance(entry, Steered) and peer is None)", "False"),
        tests=of("leader/voters"),
    ),
    Mutant(
        "an-act-counts-again",
        "A peer that captured a pause stops the run for ever.",
        Edit(authority.unproved, NUMBER, ""),
        tests=of("acts/authority"),
    ),
    Mutant(
        "an-act-of-another-branch-counts",
        "An order for a branch that was given up changes the other one.",
        Edit(authority.unproved, LINEAGE, ""),
        tests=of("acts/authority"),
    ),
    Mutant(
        "a-replayed-act-is-acknowledged",
        "A lying leader gets a majority for an old pause, and every peer stops at its entry.",
        Edit(
            LogApplier._objection,
            "if why:",
            "if why and not isinstance(entry.body, e.Steered):",
        ),
        tests=of("state/log_applier"),
    ),
    Mutant(
        "any-key-is-an-operators",
        "Each person makes a key, and steers any run.",
        Edit(
            authority.not_permitted,
            "if entry.key and entry.key not in authority.operators:",
            "if False:",
        ),
        tests=of("acts/authority"),
    ),
    Mutant(
        "a-removed-operator-signs-on",
        "A key that leaked and was removed revokes nodes.",
        Edit(orders.operators_after, "if key != act.subject", ""),
        tests=of("acts/authority"),
    ),
    Mutant(
        "voters-steer-in-every-run",
        "The operator wants to steer alone, and a stolen voter removes the others.",
        Edit(authority.not_permitted, "run.voters_steer", "True"),
        tests=of("acts/authority"),
    ),
    Mutant(
        "voters-choose-the-operators",
        "A stolen voter becomes an operator for ever.",
        Edit(authority.not_permitted, "if entry.what in NEEDS_A_KEY:", "if False:"),
        tests=of("acts/authority"),
    ),
    Mutant(
        "a-rollback-ends-a-pause",
        "All nodes restart in a pause, and the run goes on by itself.",
        Edit(Orders.restored, "= rounds", "= (1 << 30,) * len(rounds)"),
        tests=of("acts/orders"),
    ),
    Mutant(
        "a-snapshot-forgets-a-pause",
        "A peer that was away opens rounds that no other peer knows.",
        Edit(Orders.become, "image.last_rounds", "()"),
        tests=of("acts/orders"),
    ),
    Mutant(
        "a-stepwise-run-goes-on-in-a-pause",
        "The view stops, and the next one begins at once.",
        Edit(
            step_validation.of_view,
            "if run_state.orders.paused is not None:",
            "if False:",
        ),
        tests=of("acts/orders"),
    ),
    Mutant(
        "a-stepwise-run-does-not-stop-for-a-pause",
        "Its view makes steps as before.",
        Edit(transitions._steer, "if act.what == PAUSE and", "if False and"),
        tests=of("acts/orders"),
    ),
    Mutant(
        "a-removed-incarnation-is-let-in",
        "A removed peer that has not read it yet gets a state again and again.",
        Edit(entry_validation._is_kicked, "is not None", "is False"),
        tests=of("acts/orders"),
    ),
    Mutant(
        "a-pause-in-force-is-forgotten",
        "After many other acts a snapshot has no pause.",
        Edit(Orders._is_needed, "act is self.paused", "False"),
        tests=of("acts/orders"),
    ),
    Mutant(
        "schedules-follow-a-changed-length",
        "New nodes decay the learning rate otherwise than old ones.",
        Edit(
            settings.run_with,
            "replace(run, **changes)",
            "replace(run, **changes, run_json=str(changes))",
        ),
        tests=of("acts/settings"),
    ),
)
"""Mutants with the test that each breaks."""
