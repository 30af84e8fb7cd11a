"""Five rounds on fixed inputs, by our functions (compiled, and with numpy) and as torch (a
transcription); and what each codec and replicator makes of such inputs.

A script: tests/golden/test_bits.py starts it in children, each with other CPU features, and
compares what it prints (JSON) to bits.json. Must NOT draw from a library's random generator: the
inputs come from integer arithmetic, so they are the same for ever.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from lowcomm.codecs import codec, known_codecs
from lowcomm.codecs.fp4 import Fp4
from lowcomm.codecs.int4 import Int4
from lowcomm.codecs.int8 import Int8
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from lowcomm.numerics import dct
from lowcomm.numerics import operations as outer_module
from lowcomm.numerics.kernels import NumpyLoops
from lowcomm.numerics.operations import (
    F32,
    nesterov_step,
    pseudo_gradient,
    trimmed_mean,
    weighted_mean,
)
from lowcomm.numerics.robust_means import centred_clipping, clipped_mean
from lowcomm.numerics.state_digests import state_digest
from lowcomm.replicators.replicators import Grid, Replicator, Turn

ELEMENTS = 100_003  # Odd and prime: blocks, vector lanes and their tails all occur.
LR, BETA = 0.7, 0.9
TOKENS = (  # One tuple a round, one count a peer.
    (4096, 4096, 4096),
    (65536, 3, 40000, 65535),
    (1,),
    (12345, 0, 999, 7, 2**40),
    (333, 1000),
)

COMPILED_CODECS = (Int8, Int4, Fp4)

SHAPES = (Parameter("matrix", (300, 333)), Parameter("vector", (103,)))  # Of so many elements.
REPLICATORS: tuple[Literal["demo", "random", "striding", "full"], ...] = (
    "demo",
    "random",
    "striding",
    "full",
)
Encode = Callable[[Replicator, F32, Grid, Turn], tuple[bytes, bytes]]
"""(records, what they say) of some groups."""
Round = Callable[[F32, F32, list[F32], tuple[int, ...]], None]
"""Step (outer, momentum) in place by the mean of outer - local over the locals, by tokens."""


def mixed(number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finisher: 64 well mixed bits for each number (arithmetic modulo 2**64)."""
    number = number * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def inputs(stream: int) -> F32:
    """Finite fp32 numbers put together from bits. Element i has the same kind in every stream:

    1/16 denormal, 1/16 around the smallest normal, 1/16 in 2**53..2**84, the rest in 2**-15..2.
    """
    index = np.arange(ELEMENTS, dtype=np.uint64)
    bits = mixed(index + np.uint64((stream + 1) << 32))
    kind, spread = mixed(index) >> np.uint64(60), (bits >> np.uint64(24)) & np.uint64(31)
    exponent = np.uint64(112) + (spread & np.uint64(15))
    exponent = np.where(kind == 0, np.uint64(0), exponent)
    exponent = np.where(kind == 1, spread & np.uint64(3), exponent)
    exponent = np.where(kind == 2, np.uint64(180) + spread, exponent)
    sign, mantissa = bits >> np.uint64(63), bits & np.uint64(0x7FFFFF)
    word = (sign << np.uint64(31)) | (exponent << np.uint64(23)) | mantissa
    return word.astype(np.uint32).view(np.float32)


def rounds(one_round: Round) -> list[str]:
    """The state digest after each round."""
    outer, momentum = inputs(0), np.zeros(ELEMENTS, np.float32)
    digests: list[str] = []
    for number, tokens in enumerate(TOKENS):
        one_round(
            outer, momentum, [inputs(16 * number + k + 1) for k in range(len(tokens))], tokens
        )
        digests.append(state_digest(outer, momentum))
    assert np.isfinite(outer).all(), "NaN bits are not defined, so the scenario has none"
    denormal = np.abs(momentum) < np.finfo(np.float32).tiny
    assert np.count_nonzero(momentum[denormal]) > ELEMENTS / 50, "denormals stay denormal"
    return digests


def our_round(outer: F32, momentum: F32, local: list[F32], tokens: tuple[int, ...]) -> None:
    mean = np.empty_like(outer)
    for theta in local:
        pseudo_gradient(outer, theta, theta)
    weighted_mean(local, tokens, mean)
    nesterov_step(outer, mean, momentum, outer, momentum, lr=LR, beta=BETA)


def torch_round(outer: F32, momentum: F32, local: list[F32], tokens: tuple[int, ...]) -> None:
    """The same arithmetic in separate torch operations; shares memory with its arguments."""
    import torch

    params, buffer = torch.from_numpy(outer), torch.from_numpy(momentum)
    acc, scratch = torch.empty_like(params), torch.empty_like(params)
    weights = [float(np.float32(count / max(tokens))) for count in tokens]
    for k, array in enumerate(local):
        theta = torch.from_numpy(array)
        torch.sub(params, theta, out=theta)
        torch.mul(theta, weights[k], out=scratch if k else acc)
        if k:
            torch.add(acc, scratch, out=acc)
    torch.mul(acc, float(np.float32(1.0 / reduce(add, weights))), out=acc)
    torch.mul(buffer, float(np.float32(BETA)), out=buffer)
    torch.add(buffer, acc, out=buffer)
    torch.mul(buffer, float(np.float32(BETA)), out=scratch)
    torch.add(scratch, acc, out=scratch)
    torch.mul(scratch, float(np.float32(LR)), out=scratch)
    torch.sub(params, scratch, out=params)


def fused_round(outer: F32, momentum: F32, local: list[F32], tokens: tuple[int, ...]) -> None:
    """What must not be written: `alpha=` is a fused multiply-add where the CPU has one."""
    import torch

    params, buffer = torch.from_numpy(outer), torch.from_numpy(momentum)
    acc = torch.zeros_like(params)
    weights = [float(np.float32(count / max(tokens))) for count in tokens]
    for weight, array in zip(weights, local, strict=True):
        torch.add(acc, params - torch.from_numpy(array), alpha=weight, out=acc)
    torch.mul(acc, float(np.float32(1.0 / reduce(add, weights))), out=acc)
    torch.mul(buffer, float(np.float32(BETA)), out=buffer)
    torch.add(buffer, acc, out=buffer)
    step = torch.add(acc, buffer, alpha=float(np.float32(BETA)))
    torch.sub(params, step, alpha=float(np.float32(LR)), out=params)


def aggregates() -> dict[str, str]:
    """A digest of what each makes of three contributions, of which one is much larger."""
    given = [inputs(1), inputs(2), inputs(3) * np.float32(1000)]
    out, arrays = np.empty_like(given[0]), [np.empty_like(given[0]) for _ in range(4)]
    digests: dict[str, str] = {}
    trimmed_mean(given, 1, out)
    digests["trimmed_mean"] = xxhash.xxh3_128_hexdigest(out.data)
    clipped_mean(given, TOKENS[0], out)
    digests["clipped_mean"] = xxhash.xxh3_128_hexdigest(out.data)
    centred_clipping(given, TOKENS[0], out, arrays.__getitem__)
    digests["centred_clipping"] = xxhash.xxh3_128_hexdigest(out.data)
    return digests


def codecs() -> dict[str, str]:
    """A digest of each codec's payload and of what it is decoded as.

    Also where all numbers are below 2, as they mostly are, and with some that are not finite.
    """
    moderate = inputs(1)
    moderate[np.abs(moderate) > 2] = 0
    broken = inputs(2)
    broken[[7, 5000, 5001]] = [np.nan, np.inf, -np.inf]
    digests: dict[str, str] = {}
    for name in known_codecs():
        one, digest = codec(name), xxhash.xxh3_128()
        for values in (inputs(0), moderate, broken):
            payload = bytearray(one.encoded_bytes(values.size))
            one.encode(values, payload)
            digest.update(payload)
            if values is not broken:  # NaN bits are not defined once something is done to them.
                back = np.empty_like(values)
                one.decode(payload, back)
                digest.update(back.data)
        digests[name] = digest.hexdigest()
    return digests


def replicators(encode: Encode) -> dict[str, str]:
    """A digest of FlexDeMo's payloads of two nodes, of what they say, and of their mean."""
    digests: dict[str, str] = {}
    for name in REPLICATORS:
        made = FlexDeMoMethod(replicator=name).make_exchange(SHAPES, seed=3)
        digest, payloads = xxhash.xxh3_128(), list[bytes]()
        for node in range(2):
            payload, values_P = bytearray(made.payload_bytes), inputs(node)
            values_P[np.abs(values_P) > 2] = 0
            for tensor in made.tensors:
                grid, turn = tensor.grid, made.turn(7, tensor)
                for span in grid.spans(0, grid.groups):
                    start = tensor.first_element + span.first * grid.chunk * grid.columns
                    here = slice(start, start + span.count * span.rows * grid.columns)
                    values_GRC = values_P[here].reshape(span.count, span.rows, grid.columns)
                    records, said = encode(made.replicator, values_GRC, grid, turn)
                    payload[tensor.place(span, made.replicator)] = records
                    digest.update(said)
            payloads.append(bytes(payload))
            digest.update(payload)
        mean_P = np.empty(ELEMENTS, np.float32)
        made.write_mean(7, payloads, mean_P)
        digest.update(mean_P.data)
        digests[name] = digest.hexdigest()
    return digests


def our_encode(replicator: Replicator, values: F32, grid: Grid, turn: Turn) -> tuple[bytes, bytes]:
    records, said = replicator.encode_groups(values, grid, turn)
    return records.tobytes(), np.ascontiguousarray(said).tobytes()


def torch_encode(
    replicator: Replicator, values: F32, grid: Grid, turn: Turn
) -> tuple[bytes, bytes]:
    import torch

    from lowcomm.flexdemo.torch_replicators import TorchReplicator

    records, said = TorchReplicator(replicator).encode_groups(torch.from_numpy(values), grid, turn)
    return records.numpy().tobytes(), said.contiguous().numpy().tobytes()


def dispatched() -> dict[str, bool]:
    """The CPU features that this numpy has special code for, and whether it now uses them."""
    umath: Any = import_module("numpy._core._multiarray_umath")
    return {name: bool(umath.__cpu_features__[name]) for name in umath.__cpu_dispatch__}


def without_compiler() -> None:
    """From here on as in an installation that has nothing compiled."""
    outer_module._loops = NumpyLoops()
    for one in COMPILED_CODECS:
        one.kernels = None
    dct.compiled = lambda: None


def our_report() -> dict[str, object]:
    digest = state_digest(inputs(0), inputs(1))
    return {
        "inputs": digest,
        "rounds": rounds(our_round),
        "aggregates": aggregates(),
        "codecs": codecs(),
        "replicators": replicators(our_encode),
    }


def report(which: str) -> dict[str, object]:
    if which == "features":
        return {"features": dispatched()}
    if which == "compiled":
        assert not isinstance(outer_module._loops, NumpyLoops), "install with a compiler"
        assert all(one.kernels for one in COMPILED_CODECS), "install with a compiler"
        assert dct.compiled() is not None, "install with a compiler"
        return our_report()
    if which == "numpy":
        assert "NPY_DISABLE_CPU_FEATURES" not in os.environ
        without_compiler()
        return our_report()
    if which == "numpy-baseline":
        without_compiler()
        # numpy ignores names it does not know, so ask it what it really does.
        assert not any(dispatched().values()), dispatched()
        return our_report()
    assert which == "torch", which
    import torch

    torch.set_num_threads(1)
    answer: dict[str, object] = {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "rounds": rounds(torch_round),
        "fused": rounds(fused_round),
        "replicators": replicators(torch_encode),
    }
    if torch.set_flush_denormal(True):
        outer, momentum = inputs(0), np.zeros(ELEMENTS, np.float32)
        torch_round(outer, momentum, [inputs(k + 1) for k in range(len(TOKENS[0]))], TOKENS[0])
        answer["flushed_round"] = state_digest(outer, momentum)
    return answer


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report(sys.argv[1])))
