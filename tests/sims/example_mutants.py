"""An example of mutants that another author wrote: `python -m sims.mutants --mutant FILE.py`.

`python -m sims.sweep --mutant tests/sims/example_mutants.py:example-counts-all` plants one of them.
"""

from protocols.leader.decisions import RoundDecisions
from protocols.rounds.fragment_rounds import FragmentRounds
from sims.mutations.patch import Edit, Mutant

MUTANTS = [
    Mutant(
        "example-counts-all",
        "A peer that was not counted loses its steps.",
        Edit(
            FragmentRounds.applied,
            'work.resume("counted" if work.counted(round_) else "rebase", round_)',
            'work.resume("counted", round_)',
        ),
    ),
    Mutant(
        "example-commits-with-one-holder",
        "The death of that holder takes the result away, though the log says that it holds.",
        Edit(RoundDecisions._agreed, "if enough and not another", "if enough or holding"),
    ),
]
