"""One exchange between peers, by several systems side by side: `benchmarks.exchange` runs it.

Every system's workers wait at a gate of their own, so that only one system works at a time. Must
NOT know what a figure is good for.
"""
