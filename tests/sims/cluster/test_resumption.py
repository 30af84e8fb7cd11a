"""Which nodes of a run's directory start again, and which do not."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lowcomm.config.schema import NodeConfig
from lowcomm.startup.identity import RECORD, NodeRecord
from protocols.types.errors import ConfigError
from sims.cluster.commands import resume
from sims.cluster.local_cluster import PLAN
from sims.cluster.names import NAMES
from sims.cluster.resumption import _check_majority, _keys_of, resumed_nodes


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in NAMES[:3]:
        (tmp_path / name).mkdir()
        record = NodeRecord(peer=f"{name}.1", name=name, incarnation=1)
        (tmp_path / name / RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
    (tmp_path / PLAN).write_text(json.dumps({"nodes": NAMES[:3]}), encoding="utf-8")
    return tmp_path


def test_as_many_nodes_as_before_fewer_or_more(run_dir: Path) -> None:
    assert resumed_nodes(run_dir, None) == (list(NAMES[:3]), [])
    assert resumed_nodes(run_dir, 2) == (list(NAMES[:2]), [])
    assert resumed_nodes(run_dir, 5) == (list(NAMES[:3]), list(NAMES[3:5]))
    (run_dir / "delta").mkdir()  # It was killed, and left its files.
    assert resumed_nodes(run_dir, 4) == (list(NAMES[:3]), ["epsilon"])


def test_a_node_that_was_left_out_comes_back_when_more_are_asked_for(run_dir: Path) -> None:
    (run_dir / PLAN).write_text(json.dumps({"nodes": NAMES[:2]}), encoding="utf-8")
    assert resumed_nodes(run_dir, None) == (list(NAMES[:2]), [])
    assert resumed_nodes(run_dir, 3) == (list(NAMES[:3]), [])
    assert resumed_nodes(run_dir, 4) == (list(NAMES[:3]), [NAMES[3]])


def test_nodes_whose_run_never_began_are_started_again(run_dir: Path) -> None:
    _check_majority(run_dir, NAMES[:2])


@pytest.mark.parametrize(("peers", "ranks"), [(11, ""), (None, "x"), (None, "1,0,1")])
def test_a_finished_run_goes_on_only_if_all_that_was_typed_is_valid(
    run_dir: Path, peers: int | None, ranks: str
) -> None:
    changes: list[str] = []
    with pytest.raises(ConfigError):
        resume(run_dir, peers=peers, ranks=ranks, train_on=lambda: changes.append("the log"))
    assert changes == []


def test_what_cannot_be_resumed_is_told(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--peers 11: .* has room for 10"):
        resumed_nodes(run_dir, 11)
    with pytest.raises(ConfigError, match="holds nothing to resume"):
        resumed_nodes(tmp_path / "alpha", None)


def test_a_new_node_takes_the_keys_that_are_not_about_one_node() -> None:
    node = NodeConfig(
        name="alpha",
        ranks=2,
        directory="here",
        listen="127.0.0.1:1",
        corpus='a "b"',
        insecure=True,
        port_range=(2000, 3000),
        hang_timeout_s=5.5,
    )
    assert _keys_of(node) == [
        "node.insecure=true",
        "node.port_range=[2000, 3000]",
        'node.corpus="a \\"b\\""',
        "node.hang_timeout_s=5.5",
    ]
