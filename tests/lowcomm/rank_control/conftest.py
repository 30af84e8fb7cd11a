"""A daemon with ranks that exist on paper only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.daemon.daemon import Daemon
from lowcomm.methods import DiLoCoMethod
from lowcomm.outer_state.replica import Replica
from peers.ipc.shared_memory import Slots
from protocols.types.ids import TensorSpec
from tests.lowcomm.daemon.test_daemon import daemon

LAYOUT = (TensorSpec(0, "embed", (2, 3), 0), TensorSpec(1, "norm", (4,), 0))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemon]:
    """Its ranks are attached, as far as it knows."""
    with daemon(tmp_path) as made:
        made.context.run_config = RunConfig()
        made.context.replica = Replica(DiLoCoMethod(), LAYOUT)
        slots = Slots.create(made.context.replica.shape(1))
        made.ranks._provide(slots)
        yield made
        slots.close()
