"""What the parts of one node's daemon share. Must NOT decide anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowcomm.rank_control.rank_figures import RankFigures

if TYPE_CHECKING:
    from pathlib import Path

    from lowcomm.config.schema import FileConfig, NodeConfig, RunConfig
    from lowcomm.outer_state.replica import Replica
    from lowcomm.outer_state.step_replica import StepReplica
    from lowcomm.rank_control.checkpoint_schedule import CheckpointSchedule
    from lowcomm.reports.event_log import EventLog
    from peers.connections import Mesh
    from peers.driver import Driver
    from protocols.peer import PeerCore


@dataclass(slots=True, kw_only=True)
class DaemonContext:
    """What the parts of one node's daemon share. The daemon makes it and sets its fields."""

    config: FileConfig
    path: Path
    """This node's directory."""
    founds: bool
    """This node founds the run."""
    listen_cpu_s: float
    """CPU seconds of this process when it began to listen."""
    core: PeerCore
    driver: Driver
    mesh: Mesh
    event_log: EventLog
    checkpoint_schedule: CheckpointSchedule
    figures: RankFigures = field(default_factory=RankFigures)
    run_config: RunConfig | None = None
    """The run's configuration; None until it is agreed."""
    replica: Replica | StepReplica | None = None
    """The outer state; None until the model's layout is known."""

    @property
    def node(self) -> NodeConfig:
        """The configuration of this node."""
        return self.config.node

    @property
    def corpus_directory(self) -> Path:
        return self.path / "corpus"
