"""Times: seconds of a peer's own clock, which never falls. Must NOT read one."""

NEVER = float("inf")
