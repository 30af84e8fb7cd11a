"""A joiner's waiting time, and its cost for the members: parts of `benchmarks joining`."""
