"""Planted bugs of the shell (lowcomm, peers), which no simulated seed runs.

Each names the test files that catch it. Must NOT run anything (shell_mutants.py).
"""

from sims.shell_mutations.disk import DISK_MUTANTS
from sims.shell_mutations.order import ORDER_MUTANTS
from sims.shell_mutations.state import STATE_MUTANTS
from sims.shell_mutations.trust import TRUST_MUTANTS
from sims.shell_mutations.wire import NETWORK_MUTANTS

SHELL_MUTANTS = (
    *(*DISK_MUTANTS, *STATE_MUTANTS, *ORDER_MUTANTS, *NETWORK_MUTANTS, *TRUST_MUTANTS),
)
