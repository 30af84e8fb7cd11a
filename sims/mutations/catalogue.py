"""All planted bugs by name, and those of a user's own file (mutant_files.py).

Must NOT run anything (mutants.py, shell_mutants.py).
"""

from collections.abc import Mapping
from typing import Final, Literal

from protocols.types.errors import ConfigError
from sims.mutations.admission import ADMISSION_MUTANTS
from sims.mutations.bounds import BOUND_MUTANTS, BOUND_UNIT_MUTANTS
from sims.mutations.connectivity import COMPANY_MUTANTS
from sims.mutations.forks import FORK_MUTANTS
from sims.mutations.gossip import GOSSIP_MUTANTS
from sims.mutations.leadership import LEADERSHIP_MUTANTS
from sims.mutations.leases import LEASE_MUTANTS
from sims.mutations.mutant_files import FileMutant, is_file, read_mutants
from sims.mutations.owners import OWNER_MUTANTS, OWNER_UNIT_MUTANTS
from sims.mutations.patch import Mutant, UnplantableError
from sims.mutations.revocation import REVOCATION_MUTANTS, REVOCATION_UNIT_MUTANTS
from sims.mutations.rounds import MUTANTS as CORE_MUTANTS
from sims.mutations.steering import STEERING_MUTANTS, STEERING_UNIT_MUTANTS
from sims.mutations.steps import STEP_MUTANTS
from sims.mutations.transfers import TRANSFER_MUTANTS
from sims.mutations.units import UNIT_MUTANTS
from sims.mutations.voids import VOID_MUTANTS

MUTANTS = (
    *(*CORE_MUTANTS, *LEASE_MUTANTS, *VOID_MUTANTS, *TRANSFER_MUTANTS, *BOUND_MUTANTS),
    *OWNER_MUTANTS,
)
UNIT_TESTED = (
    *(*UNIT_MUTANTS, *COMPANY_MUTANTS, *ADMISSION_MUTANTS, *LEADERSHIP_MUTANTS),
    *(*REVOCATION_UNIT_MUTANTS, *STEERING_UNIT_MUTANTS),
    *(*BOUND_UNIT_MUTANTS, *OWNER_UNIT_MUTANTS),
)
"""Mutants that unit tests catch, and not a sweep."""
KNOWN = (
    *(*MUTANTS, *REVOCATION_MUTANTS, *STEERING_MUTANTS),
    *(*STEP_MUTANTS, *FORK_MUTANTS, *GOSSIP_MUTANTS, *UNIT_TESTED),
)
"""All mutants of the protocol core."""
OF_PAIRS = frozenset(known.name for known in FORK_MUTANTS)
Kind = Literal["rounds", "steps", "gossip"]
"""The kind of a run."""
KINDS: Mapping[str, Kind] = {
    **{known.name: "steps" for known in STEP_MUTANTS},
    **{known.name: "gossip" for known in GOSSIP_MUTANTS},
}
"""By mutant, the kind of runs in which it is hunted; runs of rounds if it is not listed."""
MUTANT_HELP: Final = (
    "Plant this bug first: a name of sims.mutants, or a Python file with MUTANTS or plant()."
)


def find(text: str) -> Mutant | FileMutant:
    """Return the mutant of this name, of this file, or (`FILE.py:NAME`) of this name in this file.

    Raises ConfigError if there is no such mutant, or more than one.
    """
    if not is_file(text):
        found: list[Mutant | FileMutant] = [known for known in KNOWN if known.name == text]
        if not found:
            raise ConfigError(f"no mutant is called {text}; a file's name ends in .py")
        return found[0]
    path, _, name = text.partition(".py:")
    path = f"{path}.py" if name else text
    found = [mutant for mutant in read_mutants(path) if name in ("", mutant.name)]
    if not found:
        raise ConfigError(f"{path} defines no mutant {name}")
    if len(found) > 1:
        names = ", ".join(mutant.name for mutant in found)
        raise ConfigError(f"{path} defines {len(found)} mutants: {names}; choose: {path}:NAME")
    return found[0]


def plant(text: str) -> None:
    """Plant the bug that `find` returns into this process, which must not be used for anything else
    afterwards. Raises ConfigError."""
    mutant = find(text)
    try:
        mutant.plant()
    except UnplantableError as error:
        raise ConfigError(f"{text} cannot be planted: {error}") from error
