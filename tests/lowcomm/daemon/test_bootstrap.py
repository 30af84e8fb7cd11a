"""The place of a node's outer state, and what a daemon checks before it makes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.daemon.bootstrap import _hold
from lowcomm.daemon.daemon import Daemon
from protocols.types.errors import ConfigError
from protocols.types.ids import TensorSpec
from tests.lowcomm.daemon.test_daemon import daemon


def holds(made: Daemon, elements: int, *, outer_state: str) -> Path | None:
    """The directory of its arrays."""
    context = made.context
    node = replace(context.node, outer_state=outer_state, memory_max_bytes=1 << 62)
    context.config = replace(context.config, node=node)
    _hold(context, made.ranks, RunConfig(), [TensorSpec(0, "w", (elements,), 0)])
    assert context.replica is not None
    return context.replica.arrays.directory


def test_arrays_lie_in_files_of_the_nodes_directory_if_it_says_so(tmp_path: Path) -> None:
    with daemon(tmp_path / "one") as one, daemon(tmp_path / "other") as other:
        assert holds(one, 1000, outer_state="memory") is None
        assert holds(other, 1000, outer_state="file") == tmp_path / "other"


def test_a_model_that_does_not_fit_on_the_disk_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path) as made:
        with pytest.raises(ConfigError, match=r"needs about 1441792\.00 GiB of disk, and .* free"):
            holds(made, 1 << 45, outer_state="file")
        assert made.context.replica is None
