"""Costs of lowcomm, measured beside its alternatives. Each benchmark prints the machine it ran on.

Must NOT be imported by anything.
"""
