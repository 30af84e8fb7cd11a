"""Bugs to plant into the shell."""

from sims.planting import Mutant

SHELL_MUTANTS: tuple[Mutant, ...] = ()
