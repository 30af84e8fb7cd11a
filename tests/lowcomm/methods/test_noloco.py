"""NoLoCo in one process: the bits of plain operations in changing pairs, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from lowcomm.codecs import codec
from lowcomm.config.round_length import planned_rounds
from lowcomm.config.schema import AdamWConfig, RunConfig
from lowcomm.methods import NoLoCoMethod
from lowcomm.methods.base import Parameter
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.replica import Replica
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Pool
from peers.ipc.shared_memory import Slots
from protocols.state.gossip_pairs import pairs_of, state_digest
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor, PeerId, Stamp, TensorSpec
from sims.lockstep.exchange import LocalContribution, Lockstep
from tests.lowcomm.replicas import LINEAGE, arrays

SIZE = PIECE_ELEMENTS + 4097
LAYOUT = (TensorSpec(0, "w", (SIZE,), 0),)
LR, BETA = np.float32(0.7), np.float32(0.5)
NAMES = tuple(PeerId(f"{name}.0000000{i}") for i, name in enumerate("abcde"))


def noise(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(SIZE, np.float32)


def pair_mean(one_P: F32, other_P: F32) -> F32:
    total_P = one_P + other_P
    return total_P * np.float32(0.5)


def pulled(outer_P: F32, momentum_P: F32, mean_P: F32) -> tuple[F32, F32]:
    moved_P, pull_P = momentum_P.copy(), mean_P.copy()
    pull_P -= outer_P
    pull_P *= LR
    moved_P *= BETA
    moved_P += pull_P
    return outer_P + moved_P, moved_P


def as_sent(values_P: F32, name: str) -> F32:
    sent, out_P = bytearray(codec(name).encoded_bytes(SIZE)), np.empty(SIZE, np.float32)
    codec(name).encode(values_P, sent)
    codec(name).decode(sent, out_P)
    return out_P


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_rounds_have_the_bits_of_one_operation_after_the_other(nodes: int, name: Any) -> None:
    names = NAMES[:nodes]
    together = Lockstep(NoLoCoMethod(contribution_codec=name), LAYOUT, nodes=nodes, names=names)
    first_P = noise(0)
    together.begin(0, first_P)
    states = [(first_P.copy(), np.zeros(SIZE, np.float32)) for _ in names]
    locals_P = [first_P.copy() for _ in names]
    for round_ in range(1, 5):
        for node in range(nodes):
            locals_P[node] += np.float32(0.01) * noise(10 * round_ + node)
        sent = [as_sent(local_P, name) for local_P in locals_P]
        given = {
            node: LocalContribution(local_P, 7 * node + 1) for node, local_P in enumerate(locals_P)
        }
        taken, digest = together.exchange_round(0, given)
        assert digest == state_digest(round_)
        for pair in pairs_of(names, names, fragment=0, round_=round_):
            one, other = sent[names.index(pair[0])], sent[names.index(pair[-1])]
            mean_P = pair_mean(one, other) if len(pair) == 2 else one
            for node in map(names.index, pair):
                states[node] = pulled(*states[node], mean_P)
        for node, (outer_P, momentum_P) in enumerate(states):
            held_P, moved_P = together.arrays(0, node)
            assert held_P.tobytes() == taken[node].values_P.tobytes() == outer_P.tobytes()
            assert moved_P.tobytes() == momentum_P.tobytes()
        distinct = len({outer_P.tobytes() for outer_P, _ in states})
        assert (distinct > 1) == (nodes > 2), "two that began alike, and only meet each other"
        locals_P = [each.values_P.copy() for each in taken]
        del taken
    assert together.payload_bytes == 4 * nodes * codec(name).encoded_bytes(SIZE)
    together.close()


def test_it_is_the_published_update() -> None:
    """With both means, of what outer parameters moved by and of these themselves."""
    theta, phi, momentum = ([noise(3 * node + k) for node in range(2)] for k in range(3))
    moved_P, outer_P = (theta[0] - phi[0] + theta[1] - phi[1]) / 2, (phi[0] + phi[1]) / 2
    expected = BETA * momentum[0] + LR * moved_P + LR * (outer_P - phi[0])
    ours, kept = np.empty((2, SIZE), np.float32)
    mean_P = pair_mean(*theta)
    NoLoCoMethod().outer_step(phi[0], momentum[0], mean_P, ours, kept)
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours, phi[0] + expected, rtol=0, atol=1e-5)


def test_who_is_not_counted_stays_as_it_is() -> None:
    together = Lockstep(NoLoCoMethod(), LAYOUT, nodes=3, names=NAMES[:3])
    together.begin(0, noise(0))
    before = [array.tobytes() for array in together.arrays(0, 2)]
    moved_P = noise(1)
    taken, digest = together.exchange_round(
        0, {0: LocalContribution(moved_P, 1), 1: LocalContribution(noise(2), 1)}
    )
    assert (digest, taken[2].counted) == (state_digest(1), False)
    assert not taken[2].values_P.any(), "its parameters move by nothing"
    assert [array.tobytes() for array in together.arrays(0, 2)] == before
    together.close()


def test_what_ranks_contribute_moves_along_with_a_state_that_came_meanwhile() -> None:
    replica = Replica(NoLoCoMethod(), LAYOUT)
    slots = Slots.create(replica.shape(ranks=1))
    replica.share(slots)
    first_P, other_P, local_P = noise(0), noise(1), noise(2)
    replica.initialise(0, first_P.view(np.uint8).data)
    replica.place_result(0, full=True)
    state = np.concatenate([other_P, noise(3)])
    assert replica.check_state(0, 4, [state.tobytes()]) == state_digest(4)
    assert replica.check_state(0, 4, [state[1:].tobytes()]) == ""
    replica.adopt_state(0, 4, bytearray(state.tobytes()), lineage=LINEAGE)
    assert replica.version(0) == (4, state_digest(4))
    place = slots.contribution(0)
    place[:] = local_P.view(np.uint8).data
    replica.contributions.take_local(0, place)
    encoding = Encoding(replica, 0, SIZE, Pool(), manifest="x")
    expected_P = local_P.copy()
    expected_P -= first_P - other_P
    assert bytes(encoding.cut(0, SIZE)) == expected_P.tobytes()
    terms = [Contributor(NAMES[0], 1, 1, "x")]
    replica.apply(Stamp(0, 0, 1, 0, 5, 0), (0, SIZE), [bytes(encoding.cut(0, SIZE))], terms)
    outer_P, _ = pulled(other_P, state[SIZE:], expected_P)
    assert arrays(replica, 0)[0].tobytes() == outer_P.tobytes()
    slots.close()


def test_the_model_is_one_fragment_and_both_of_a_pair_weigh_the_same() -> None:
    method = NoLoCoMethod()
    assert (method.inner_steps, method.outer_lr, method.outer_momentum) == (50, 0.7, 0.5)
    assert method.fragments_of([Parameter("a", (4, 3)), Parameter("b", (3,))]) == (0, 0)
    assert method.weights([Contributor(NAMES[0], 9, 1, "x"), Contributor(NAMES[1], 1, 1, "y")]) == [
        1,
        1,
    ]
    assert method.mean_codec is not None
    assert method.mean_codec.name == "fp32"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"contribution_codec": "int8"}, "noloco sends parameters.*set fp32, bf16 or fp16"),
        ({"contribution_codec": "topk"}, "noloco sends parameters"),
        ({"result_codec": "bf16"}, "noloco sends no result: leave it out"),
        ({"aggregate": "clipped_mean"}, "cannot tell which of two nodes is wrong"),
        ({"weight_max": 2.0}, "pairs of equal weight"),
        (
            {"round_s": 2.0},
            "but both nodes of a noloco pair weigh the same, .*leave it",
        ),
        ({"outer_momentum": 1.0}, r"outer_momentum must be in \[0, 1\), got 1"),
        ({"outer_lr": 0.0}, "outer_lr must be positive"),
    ],
)
def test_what_makes_no_sense_for_a_pair_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        NoLoCoMethod(**said)


def test_rounds_may_grow_longer_for_both_of_a_pair() -> None:
    run = RunConfig(
        outer_steps=100,
        method=NoLoCoMethod(inner_steps=10, qsr_alpha=0.01),
        optimizer=AdamWConfig(lr=1e-3, warmup_steps=10),
    )
    assert planned_rounds(run) < 100
