"""What a joiner costs the others, and how long it waits: parts of `benchmarks.joining`."""
