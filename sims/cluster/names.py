"""Names of nodes on this machine. Must NOT import anything: `lowcomm --help` imports this."""

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")
