"""Messages between a node's daemon and the process that runs ranks of the node on another host.

They are records as those of peers/ipc (`peers/ipc/messages.py`), which pass between the two as
well. Must NOT contain behaviour.
"""

from dataclasses import dataclass

VERSION = 1
"""Of these messages and of frames.py; both sides have the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHello:
    """host -> daemon, first: the number of this host, from 1 on."""

    host: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWelcome:
    """daemon -> host: it runs `ranks` ranks of the node, the first of them number `first`."""

    first: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDismissed:
    """daemon -> host, last: do not come back. `failed`: because it is refused."""

    why: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRanks:
    """daemon -> host: begin this attempt. `environments`: JSON, for each rank its variables but for
    the socket."""

    attempt: int
    environments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRanks:
    """daemon -> host: the attempt is over; kill its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksStopped:
    """host -> daemon: no rank is left, and nothing more comes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksExited:
    """host -> daemon: a rank has ended, by an exit with `code` or by `signal`. `all_ranks`: all of
    this host have; else `index` counts from its first one. `line`: the telling line of stderr."""

    all_ranks: bool
    index: int
    code: int
    signal: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSilent:
    """host -> daemon, the last of a rank: as Closed of `peers/ipc/daemon_socket.py`."""

    rank: int
    why: str
    ended: bool


FromHost = HostHello | RanksStopped | RanksExited | RankSilent
FromDaemon = HostWelcome | HostDismissed | StartRanks | StopRanks
