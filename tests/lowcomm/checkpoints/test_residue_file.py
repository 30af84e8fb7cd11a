"""What a node's codec left out so far comes back with exactly the state that it belongs to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import CheckpointCut, FragmentCut, PeerCut, write_checkpoint
from lowcomm.checkpoints.residue_file import FILE, find_residue, write_residues
from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.replica import Replica
from protocols.types.ids import Contributor, PeerId, TensorSpec
from tests.lowcomm.replicas import LINEAGE, arrays, encoded, gaussian, share, stamp, view

SIZE = 5000
ME = PeerId("p0.0")


def sparse(codec: str = "topk", *, checkpoints: Path | None = None) -> Replica:
    named: dict[str, Any] = {"contribution_codec": codec, "outer_momentum": 0.5}
    replica = Replica(DiLoCoMethod(**named), (TensorSpec(0, "w", (SIZE,), 0),))
    replica.checkpoints = checkpoints
    share(replica)
    return replica


def begun(codec: str = "topk") -> Replica:
    replica = sparse(codec)
    replica.initialise(0, view(gaussian(0, SIZE)))
    replica.place_result(0, full=True)
    return replica


def play(replica: Replica, round_: int) -> tuple[bytes, str]:
    """A round that this node makes alone: what it sent, and the state after it."""
    base_P, _ = arrays(replica, 0)
    replica.contributions.take_local(0, view((base_P + gaussian(round_, SIZE)).astype(np.float32)))
    name = f"{round_:032x}"
    sent = encoded(replica, 0, name)
    digest = replica.apply(stamp(0, round_), (0, SIZE), [sent], [Contributor(ME, 1, 1, name)])
    replica.place_result(0, full=True)
    return sent, digest


def cut_of(replica: Replica) -> CheckpointCut:
    version, digest = replica.version(0)
    where = FragmentCut(version=version, inner_step=1, tokens=1, state_digest=digest)
    own = PeerCut(peer=ME, incarnation=1, data_slot=0, rank_state="")
    return CheckpointCut(
        log_index=9, lineage="0" * 16, run_digest="0" * 16, fragments=(where,), own=own
    )


def keep(directory: Path, replica: Replica) -> Path:
    """As the checkpointer does."""
    cut, layout = cut_of(replica), [[("w", (SIZE,), 0)]]
    outer_P, momentum_P = arrays(replica, 0)
    residues = replica.capture().residues
    return write_checkpoint(
        directory,
        cut,
        layout,
        [outer_P],
        [momentum_P],
        lambda place: write_residues(place, cut.fragments, residues),
    )


@pytest.mark.parametrize("codec", ["topk", "2bit", "sign"])
@pytest.mark.parametrize("way", ["its own checkpoint", "another peer's state"])
def test_a_restarted_node_goes_on_bit_by_bit(tmp_path: Path, codec: str, way: str) -> None:
    first = begun(codec)
    for round_ in (1, 2, 3):
        play(first, round_)
    keep(tmp_path, first)
    state = b"".join(first.lend_state(0, 3))
    expected = [play(first, round_) for round_ in (4, 5)]

    def again(checkpoints: Path) -> list[tuple[bytes, str]]:
        replica = sparse(codec, checkpoints=checkpoints)
        if way == "its own checkpoint":
            assert replica.adopt_kept(0, 3, lineage=LINEAGE)
        else:
            replica.adopt_state(0, 3, bytearray(state), lineage=LINEAGE)
        replica.place_result(0, full=True)
        return [play(replica, round_) for round_ in (4, 5)]

    assert again(tmp_path) == expected
    (tmp_path / "round-000003" / FILE).unlink()
    assert again(tmp_path)[0][0] != expected[0][0], "that is what the residue is for"


def test_a_state_of_another_version_has_none(tmp_path: Path) -> None:
    first = begun()
    play(first, 1)
    keep(tmp_path, first)
    play(first, 2)
    replica = sparse(checkpoints=tmp_path)
    replica.adopt_state(0, 2, bytearray(b"".join(first.lend_state(0, 2))), lineage=LINEAGE)
    assert not replica.capture().residues[0].any()
    assert first.capture().residues[0].any()
    # The same number, but another state: the run went back, and came by another way.
    other = begun()
    play(other, 7)
    outer_P, momentum_P = arrays(other, 0)
    replica.restore(0, 1, outer_P, momentum_P, lineage=LINEAGE)
    assert not replica.capture().residues[0].any()


def test_the_newest_checkpoint_is_not_the_only_one(tmp_path: Path) -> None:
    first = begun()
    kept: dict[int, tuple[str, F32]] = {}
    for round_ in (1, 2):
        _, digest = play(first, round_)
        kept[round_] = digest, first.capture().residues[0]
        keep(tmp_path, first)
    for round_, (digest, residue_P) in kept.items():
        found = find_residue(tmp_path, 0, round_, digest, elements=SIZE)
        assert found is not None
        assert found.tobytes() == residue_P.tobytes()
    assert find_residue(tmp_path, 0, 1, kept[2][0], elements=SIZE) is None
    assert find_residue(tmp_path, 1, 1, kept[1][0], elements=SIZE) is None
    assert find_residue(tmp_path, 0, 1, kept[1][0], elements=SIZE + 1) is None


@pytest.mark.parametrize("harm", ["cut short", "a bit", "empty", "no seal", "nonsense in the seal"])
def test_one_that_is_damaged_is_as_good_as_none(tmp_path: Path, harm: str) -> None:
    from safetensors import numpy

    first = begun()
    _, digest = play(first, 1)
    file = keep(tmp_path, first) / FILE
    assert find_residue(tmp_path, 0, 1, digest, elements=SIZE) is not None
    whole = file.read_bytes()
    if harm == "cut short":
        file.write_bytes(whole[: len(whole) // 2])
    elif harm == "a bit":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif harm == "empty":
        file.write_bytes(b"")
    else:
        seal = json.dumps([{"version": 1}]) if harm != "no seal" else "{"
        numpy.save_file({"0": first.capture().residues[0]}, file, metadata={"seal": seal})
    assert find_residue(tmp_path, 0, 1, digest, elements=SIZE) is None
    assert sparse(checkpoints=tmp_path).adopt_kept(0, 1, lineage=LINEAGE) == digest, (
        "the checkpoint is whole"
    )


def test_without_error_feedback_nothing_is_kept(tmp_path: Path) -> None:
    plain = begun("fp32")
    play(plain, 1)
    assert plain.capture().residues == []
    assert not (keep(tmp_path, plain) / FILE).exists()
