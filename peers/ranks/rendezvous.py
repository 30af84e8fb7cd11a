"""Where the ranks of a group find their daemon and each other: a directory of sockets, and a port.

Must NOT serve a socket.
"""

import os
import shutil

from peers.processes.supervisor import free_port, rank_environments
from peers.ranks.config import RanksConfig, free_directory


class Rendezvous:
    """The addresses of one group: `open`, then `close`."""

    def __init__(self, config: RanksConfig) -> None:
        self._config = config
        self._directory = free_directory(config.directory)
        self.socket_path = f"{self._directory}/lifeline"
        self.bus_endpoint = f"ipc://{self._directory}/bus"
        """The endpoint of the bus while the group runs; known from the start."""
        self._port = 0

    def open(self) -> None:
        """Make the directory. Raises OSError."""
        os.mkdir(self._directory, 0o700)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def environments(self, attempt: int) -> list[dict[str, str]]:
        """The environments of this attempt's ranks, with another port than the attempt before."""
        self._port = free_port(self._config.port_range, avoid=self._port)
        return rank_environments(
            attempt, ranks=self._config.ranks, port=self._port, socket_path=self.socket_path
        )
