"""Where the ranks of a group find their daemon and each other: a directory of sockets, and a port.

Must NOT serve a socket.
"""

from collections.abc import Callable

from peers.ipc.daemon_socket import Inbox
from peers.ipc.shared_memory import Slots
from peers.processes.supervisor import free_port, rank_environments
from peers.ranks.config import RanksConfig
from peers.ranks.socket_directory import SocketDirectory

Elsewhere = Callable[[Inbox, Callable[[], Slots | None]], None]
"""Takes the inbox for the messages of ranks on other hosts, and a function that returns the memory
of the group, once it is there."""


class Rendezvous:
    """The addresses of one group: `make_directory`, then `close`."""

    def __init__(self, config: RanksConfig, elsewhere: Elsewhere | None = None) -> None:
        """`elsewhere`: called when the group begins; None: all ranks are on this host."""
        self._config = config
        self._elsewhere = elsewhere
        self._directory = SocketDirectory(config.directory)
        self.socket_path = f"{self._directory.path}/lifeline"
        self.bus_endpoint = f"ipc://{self._directory.path}/bus"
        """The endpoint of the bus while the group runs; known from the start."""
        self._port = 0

    def make_directory(self) -> None:
        """Make the directory. Raises OSError."""
        self._directory.make_directory()

    def lead_here(self, inbox: Inbox, slots: Callable[[], Slots | None]) -> None:
        """Give ranks on other hosts their way to the group."""
        if self._elsewhere is not None:
            self._elsewhere(inbox, slots)

    def close(self) -> None:
        self._directory.close()

    def environments(self, attempt: int) -> list[dict[str, str]]:
        """The environments of this attempt's ranks, with another port than the attempt before."""
        self._port = free_port(self._config.port_range, avoid=self._port)
        return rank_environments(
            attempt, ranks=self._config.ranks, port=self._port, socket_path=self.socket_path
        )
