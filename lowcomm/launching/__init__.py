"""Nodes on several hosts: `lowcomm launch`.

In: hosts.toml, and the run's configuration. Out: on each host, as a local process or over ssh, a
supervisor with one peer daemon, which outlives the connection; one live view of all. Must NOT
decide anything for a run, put a secret into arguments, nor install what was not asked for.

Start reading: hosts_file.py, then launch.py; on the host: host_side.py, then supervisor.py.
"""

__all__: list[str] = []
