"""Where the ranks of a group find their daemon and each other: a directory of sockets, and a port.

Must NOT serve a socket.
"""

from peers.processes.supervisor import free_port, rank_environments
from peers.ranks.config import RanksConfig
from peers.ranks.socket_directory import SocketDirectory


class Rendezvous:
    """The addresses of one group: `make_directory`, then `close`."""

    def __init__(self, config: RanksConfig) -> None:
        self._config = config
        self._directory = SocketDirectory(config.directory)
        self.socket_path = f"{self._directory.path}/lifeline"
        self.bus_endpoint = f"ipc://{self._directory.path}/bus"
        """The endpoint of the bus while the group runs; known from the start."""
        self._port = 0

    def make_directory(self) -> None:
        """Make the directory. Raises OSError."""
        self._directory.make_directory()

    def close(self) -> None:
        self._directory.close()

    def environments(self, attempt: int) -> list[dict[str, str]]:
        """The environments of this attempt's ranks, with another port than the attempt before."""
        self._port = free_port(self._config.port_range, avoid=self._port)
        return rank_environments(
            attempt, ranks=self._config.ranks, port=self._port, socket_path=self.socket_path
        )
