"""A node on several hosts: what its daemon makes for them, and what it refuses."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.daemon.daemon import Daemon
from lowcomm.methods import AllReduceMethod
from lowcomm.rank_control.further_hosts import on_all_hosts
from lowcomm.rank_control.rank_control import program_spawner
from peers.hosts.spawner import HostsSpawner
from peers.security.node_secret import SECRET_FILE
from protocols.types import ConfigError
from tests.lowcomm.daemon.test_daemon import daemon


def on_two_hosts(made: Daemon) -> None:
    context = made.context
    keys = {"ranks": 2, "other_hosts": (1,), "other_hosts_listen": "127.0.0.1:0"}
    context.config = replace(context.config, node=replace(context.node, **keys))


def test_a_node_on_one_host_has_nothing_more(tmp_path: Path) -> None:
    local = program_spawner(["x"])
    with daemon(tmp_path) as made:
        assert on_all_hosts(local, made.context, adopted=False) == (local, None)
    assert not (tmp_path / SECRET_FILE).exists()


def test_a_node_on_several_hosts_has_a_secret_for_them(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        on_two_hosts(made)
        spawner, elsewhere = on_all_hosts(program_spawner(["x"]), made.context, adopted=False)
        assert isinstance(spawner, HostsSpawner)
        assert elsewhere is not None
        assert spawner.program == "the program `x`"
        assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600
        asyncio.run(spawner.close())


def test_a_program_that_starts_its_daemon_cannot_be_on_several_hosts(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        on_two_hosts(made)
        with pytest.raises(ConfigError, match="use `lowcomm peer"):
            on_all_hosts(program_spawner(["x"]), made.context, adopted=True)


def test_a_per_step_method_is_refused_on_several_hosts(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        on_two_hosts(made)
        with pytest.raises(ConfigError, match="is for methods of rounds"):
            made.ranks.configure(RunConfig(method=AllReduceMethod()))
