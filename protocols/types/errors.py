"""Errors that are raised on purpose, one type for each party at fault.

A programmer's error is an `assert`; no message of a peer may trip one.
"""


class LowcommError(Exception):
    """The base of all errors that this project raises on purpose. Its text is one line for a
    person."""


class ConfigError(LowcommError):
    """A configured or typed value cannot work. The command line exits with 2."""


class RefusedError(LowcommError):
    """The run refuses this peer, or this peer the run. The command line exits with 3."""


class LogError(LowcommError):
    """The agreed log contradicts itself: no peer can go on from it."""


class RemoteProtocolError(LowcommError):
    """A peer sent a message that its state, or the format, forbids."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{peer}: {why}")
        self.peer = peer
        self.why = why
