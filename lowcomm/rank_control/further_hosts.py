"""A node on several hosts: the daemon's socket for them, and the secret that they share.

Must NOT know what passes between the hosts (peers/hosts).
"""

from lowcomm.rank_control.context import DaemonContext
from peers.hosts import HostsSpawner, RankHosts
from peers.processes import Spawner
from peers.ranks import Elsewhere
from peers.security import SECRET_FILE, make_secret, secret_tls
from peers.sockets import bind, parse_address
from protocols.types import ConfigError


def on_all_hosts(
    local: Spawner, context: DaemonContext, *, adopted: bool
) -> tuple[Spawner, Elsewhere | None]:
    """The spawner of the node's ranks on all hosts, and the way of those on other hosts to their
    group. Raises ConfigError."""
    node = context.config.node
    if not node.other_hosts:
        return local, None
    if adopted:
        raise ConfigError(
            "node.other_hosts needs a daemon that starts the program: use `lowcomm peer run.toml "
            "... -- torchrun train.py`, and `lowcomm ranks` on the other hosts"
        )
    path = context.path / SECRET_FILE
    make_secret(path)
    tls = secret_tls(path)
    listening, address = bind(node.other_hosts_listen, key="node.other_hosts_listen")
    hosts = RankHosts(
        listening,
        tls,
        counts=node.other_hosts,
        ranks=node.ranks,
        note=lambda text: context.event_log.note("hosts", text),
        hint=f"`lowcomm ranks {address} --secret FILE` with a copy of {path}",
    )
    host, _ = parse_address(address, key="node.other_hosts_listen")
    return HostsSpawner(local, hosts, address=host), hosts.lead_here
