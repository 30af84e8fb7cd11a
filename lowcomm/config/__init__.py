"""Configuration: the agreed `[run]` and the node's own `[node]`, loaded and checked in one place.

In: a TOML file and overrides of the command line. Out: frozen dataclasses; ConfigError with what is
wrong and what to do. Learning rates and round lengths that follow from it are pure functions. Must
NOT import torch, and no other room reads a configuration file.

Start reading: schema.py.
"""
