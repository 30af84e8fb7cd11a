"""Commands that ask a node of this machine, without daemons."""

import os
from pathlib import Path

import pytest

from lowcomm.cli.acts_command import Signer, running
from lowcomm.startup.identity import NodeDirectory, NodeRecord
from peers.security.keys import ROOT_KEY
from protocols.types.errors import ConfigError


def test_a_node_that_starts_is_not_told_as_one_that_does_not_run(tmp_path: Path) -> None:
    node = NodeDirectory(tmp_path / "alpha")
    node.write(NodeRecord(peer="alpha.1", name="alpha", incarnation=1, pid=os.getpid()))
    with pytest.raises(ConfigError, match="alpha is starting and answers no command yet"):
        running(tmp_path / "alpha")
    node.close()
    with pytest.raises(ConfigError, match="no node runs in"):
        running(tmp_path / "alpha")


def test_a_key_that_cannot_be_read_is_told_with_its_own_remedy(tmp_path: Path) -> None:
    (tmp_path / "mine.pem").write_text("half a key")
    with pytest.raises(ConfigError, match=r"mine\.pem cannot be used: .*another file with --key$"):
        Signer.of(tmp_path, tmp_path / "mine.pem")
    (tmp_path / ROOT_KEY).mkdir()
    with pytest.raises(ConfigError, match="Is a directory; do this as its owner, or name an oper"):
        Signer.of(tmp_path / "alpha", None)
