"""Whose fault is it? One type for each answer.

A programmer's error is an `assert`; nothing that a peer can send may trip one.
"""


class LowcommError(Exception):
    """Base of everything this project raises on purpose. Its text is one line for a person."""


class ConfigError(LowcommError):
    """A value that somebody typed cannot work. The command line exits with 2."""


class RefusedError(LowcommError):
    """The run does not take this peer (or this peer not the run). The command line exits with 3."""


class LogError(LowcommError):
    """The agreed log does not make sense: nobody can go on from it."""


class RemoteProtocolError(LowcommError):
    """A peer sent something that its state, or the format, forbids."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{peer}: {why}")
        self.peer = peer
        self.why = why
