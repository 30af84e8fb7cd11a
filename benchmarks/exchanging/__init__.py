"""One exchange between peers, by several systems side by side: `benchmarks exchange` runs it.

The workers of each system wait at a gate of their own, so that only one system works at a time.
Must NOT judge the figures.
"""
