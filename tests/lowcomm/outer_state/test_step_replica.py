"""The daemon's half of a stepwise run: means, copies of the state, and what counts for nothing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash

from lowcomm.checkpoints.checkpoint import (
    MODEL,
    MOMENTUM,
    CheckpointCut,
    FragmentCut,
    PeerCut,
    write_checkpoint,
)
from lowcomm.methods import AllReduceMethod, FlexDeMoMethod, StepMethod
from lowcomm.numerics.arrays import LargeArrays
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.fragment_layout import LayoutError
from lowcomm.outer_state.step_replica import (
    STATES_HELD,
    StepReplica,
    file_bytes_for_steps,
    needed_for_steps,
)
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import LINEAGE

LAYOUT = (TensorSpec(0, "body", (2, 3), 0), TensorSpec(0, "head", (4,), 6))
ELEMENTS = 10
STATE_BYTES = 3 * 4 * ELEMENTS


def replica(codec: str = "fp32") -> StepReplica:
    method = AllReduceMethod(contribution_codec=codec)  # type: ignore[arg-type]
    return StepReplica(method, LAYOUT, seed=0)


def values(salt: int) -> F32:
    return np.arange(ELEMENTS, dtype=np.float32) * np.float32(0.3) - np.float32(salt)


def mean_of(made: StepReplica, payloads: Sequence[bytes]) -> F32:
    out = memoryview(bytearray(4 * ELEMENTS))
    made.write_mean(1, payloads, out)
    return np.frombuffer(out, np.float32)


def plain_mean(terms: Sequence[F32]) -> F32:
    """In this order, and multiplied by the inverse of how many they are."""
    total = terms[0].copy()
    for term in terms[1:]:
        total = total + term
    return total * np.float32(1.0 / len(terms))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_mean_is_summed_in_the_order_given(count: int) -> None:
    made, terms = replica(), [values(number) for number in range(count)]
    payloads = [bytes(made.make_payload(term.tobytes())) for term in terms]
    assert [len(payload) for payload in payloads] == [made.payload_bytes] * count
    assert mean_of(made, payloads).tobytes() == plain_mean(terms).tobytes()


def test_payloads_are_encoded_once_and_our_own_counts_as_it_was_sent() -> None:
    made = replica("bf16")
    payload = bytes(made.make_payload(values(1).tobytes()))
    assert len(payload) == made.payload_bytes == 2 * ELEMENTS
    mean_P = mean_of(made, [payload])
    assert np.allclose(mean_P, values(1), rtol=2**-8)
    assert mean_P.tobytes() != values(1).tobytes()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_payload_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    made, wrong = replica(), values(0)
    wrong[3] = bad
    payloads = [wrong.tobytes(), values(1).tobytes(), values(2).tobytes()]
    expected = plain_mean([values(1), values(2)])
    assert mean_of(made, payloads).tobytes() == expected.tobytes()
    assert not mean_of(made, [wrong.tobytes()]).any()


def test_a_payload_that_is_none_of_its_codec_counts_for_nothing() -> None:
    made = replica()
    payloads = [b"short", values(2).tobytes()]
    assert mean_of(made, payloads).tobytes() == values(2).tobytes()


def test_copies_are_kept_until_a_later_one_is_the_base() -> None:
    made = replica()
    assert made.state_bytes(0) == STATE_BYTES
    for step in (0, 16, 32):
        state = bytes([step]) * STATE_BYTES
        made.keep_copy(step, state, made.state_digest(state), lineage=LINEAGE)
    assert made.lend_state(0, 0) == (made.base(0),) == (bytes(STATE_BYTES),)
    made.release(16)
    assert made.lend_state(0, 16) == (made.base(16),) == (bytes([16]) * STATE_BYTES,)
    assert made.version(0) == (16, made.state_digest(bytes([16]) * STATE_BYTES))
    (base,) = made.capture().fragments
    assert (base.outer_P.size, base.momentum_P.size) == (ELEMENTS, 2 * ELEMENTS)
    assert (base.version, base.state_digest, base.lineage) == (*made.version(0), LINEAGE)
    with pytest.raises(KeyError):
        made.base(0)


def test_a_state_that_arrives_takes_the_place_of_all() -> None:
    made, state = replica(), bytearray([7]) * STATE_BYTES
    made.keep_copy(16, bytes(STATE_BYTES), made.state_digest(bytes(STATE_BYTES)), lineage=LINEAGE)
    assert made.check_state(0, 1, [state[1:]]) == ""
    left = [None]
    digest = made.check_state(0, 1, [state], left.pop)
    assert left == [], "it may be ended before each cell"
    assert digest == xxhash.xxh3_128_hexdigest(state)
    made.adopt_state(0, 8, state, lineage=LINEAGE)
    assert made.version(0) == (8, digest)
    assert made.lend_state(0, 8) == (made.base(8),) == (state,)
    assert made.lend_state(0, 16) == (), "it is another one"


def kept(directory: Path, made: StepReplica, *, arrays: tuple[str, ...]) -> Path:
    """A checkpoint of the base."""
    step, digest = made.version(0)
    (base,) = made.capture().fragments
    cut = CheckpointCut(
        log_index=9,
        lineage="0" * 16,
        run_digest="1" * 16,
        fragments=(FragmentCut(version=step, inner_step=step, tokens=2, state_digest=digest),),
        own=PeerCut(peer="a", incarnation=1, data_slot=0, rank_state=""),
        arrays=arrays,
    )
    layout = (tuple((t.name, t.shape, t.offset) for t in LAYOUT),)
    return write_checkpoint(directory, cut, layout, [base.outer_P], [base.momentum_P])


@pytest.mark.parametrize(
    "method", [AllReduceMethod(), FlexDeMoMethod(), FlexDeMoMethod(step="adamw")]
)
def test_a_checkpoint_gives_the_state_back(method: StepMethod, tmp_path: Path) -> None:
    made = StepReplica(method, LAYOUT, seed=0)
    again = StepReplica(method, LAYOUT, seed=0, arrays=LargeArrays(tmp_path))
    state = np.arange(made.state_bytes(0) // 4, dtype=np.float32).tobytes()
    made.keep_copy(16, state, made.state_digest(state), lineage=LINEAGE)
    path = kept(tmp_path, made, arrays=method.state_arrays)
    assert again.adopt_kept(0, 16, lineage=LINEAGE) == "", "it does not know where to look"
    again.checkpoints = tmp_path
    assert again.adopt_kept(0, 8, lineage=LINEAGE) == "", "of another step"
    assert again.adopt_kept(0, 16, lineage=LINEAGE) == made.version(0)[1]
    assert again.base(16) == state
    torn = path / (MOMENTUM if len(method.state_arrays) > 1 else MODEL)
    torn.write_bytes(torn.read_bytes()[:-4])
    assert again.adopt_kept(0, 16, lineage=LINEAGE) == ""


def test_a_checkpoint_of_another_method_is_none(tmp_path: Path) -> None:
    made = replica()
    state = bytes(STATE_BYTES)
    made.keep_copy(16, state, made.state_digest(state), lineage=LINEAGE)
    kept(tmp_path, made, arrays=("parameters", "first", "second"))
    made.checkpoints = tmp_path
    assert made.adopt_kept(0, 16, lineage=LINEAGE) == ""


def test_shared_memory_holds_a_payload_a_mean_and_two_states() -> None:
    shape = replica().shape(3)
    assert (shape.ranks, shape.fragment_bytes, shape.copies) == (3, (40, STATE_BYTES), 1)


def test_memory_counts_the_payloads_since_the_base() -> None:
    method = AllReduceMethod(commit_every_steps=8, snapshot_every_steps=16)
    steps = 16 + 4 * 8
    needed = STATES_HELD * STATE_BYTES + 4 * steps * 4 * ELEMENTS
    assert needed_for_steps(method, LAYOUT, peers_min=3) == needed
    payloads = needed_for_steps(method, LAYOUT, peers_min=3, in_file=True)
    assert payloads == needed - STATES_HELD * STATE_BYTES
    assert file_bytes_for_steps(method, LAYOUT) == (STATES_HELD + 1) * STATE_BYTES + 3 * 40


def test_a_layout_with_a_gap_is_refused() -> None:
    with pytest.raises(LayoutError):
        StepReplica(AllReduceMethod(), LAYOUT[1:], seed=0)
