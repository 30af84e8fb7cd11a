"""Times are seconds (float) of a peer's own monotonic clock. Must NOT read a clock."""

NEVER = float("inf")
