"""One training process of the GPU benchmark:
`benchmarks.gpus.gpu_node MODE MODEL DEVICE FILE STEP_S`.

`bare` trains without lowcomm, `peer` trains as a rank of a node, `idle` is a rank on the CPU that
rests instead of training. All have the same model. Must NOT measure inside of a step: a GPU works
asynchronously, and the step's time is the time between two synchronised moments.
"""

import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from lowcomm import StreamingDiLoCo, attach
from lowcomm.config import ModelConfig
from lowcomm.models import build_model, next_token_loss
from lowcomm.training import Kind, Peer

ROUND_STEPS = 100
"""Inner steps of a round."""
WINDOW_STEPS = 25
"""Steps between two synchronised moments."""
SETTLING_STEPS = 150
"""Steps at first that are not measured: the first checkpoint takes longer than others."""
BARE_STEPS = 150
WARMUP_STEPS = 25
PACE = 0.97
"""A resting node's time for a step, as a share of the bare loop's."""
MODELS = {
    "124m": ModelConfig(
        vocab_size=32768,
        hidden_size=768,
        layers=12,
        heads=12,
        kv_heads=12,
        intermediate_size=1920,
        context=1024,
    ),
    "369m": ModelConfig(
        vocab_size=32768,
        hidden_size=1024,
        layers=24,
        heads=16,
        kv_heads=16,
        intermediate_size=2752,
        context=1024,
    ),
    "small": ModelConfig(vocab_size=256, context=64),
}
"""By the number of their parameters, and one to try the program on a CPU."""
ROWS = {"124m": 16, "369m": 16, "small": 1}
"""Sequences of a batch, each as long as the model's context."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The command line of this process."""

    mode: str
    model: str
    device: str
    told: Path
    step_s: float = 0.0
    """Seconds that an idle node rests in each step."""


class TimedDiLoCo(StreamingDiLoCo):
    """Measures the parts of `step` in the training loop."""

    def __init__(self, model: nn.Module, optimizer: AdamW, peer: Peer) -> None:
        self.parts: list[tuple[str, int, float]] = []
        """Name of a part, inner step, seconds."""
        super().__init__(model, optimizer, peer)
        self.parts.clear()

    def step(self, *, tokens: int | None = None) -> None:
        with self._timed("step"):
            super().step(tokens=tokens)

    def write(self, fragment: int, place: memoryview) -> None:
        with self._timed("contribute"):
            super().write(fragment, place)

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        with self._timed("take"):
            super().take_result(fragment, values, kind, mixing=mixing)

    def snapshot(self, directory: str) -> None:
        with self._timed("snapshot"):
            super().snapshot(directory)

    def seconds(self, first: int, last: int) -> dict[str, float]:
        """Seconds of each part in these steps. "wait": the rest of `step`, in which the rank waits
        for its daemon."""
        found: dict[str, float] = {"step": 0.0, "contribute": 0.0, "take": 0.0, "snapshot": 0.0}
        for name, step, took_s in self.parts:
            if first < step <= last:
                found[name] += took_s
        whole_s = found.pop("step")
        return found | {"wait": whole_s - sum(found.values())}

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            step = self.steps if hasattr(self, "_rank") else 0  # Not before it has joined.
            self.parts.append((name, step, time.monotonic() - began))


class GpuTraining:
    """A model on random tokens, with AdamW; on a GPU in bf16 by autocast."""

    def __init__(self, sizes: Sizes) -> None:
        self.device = torch.device(sizes.device)
        self._is_gpu = self.device.type == "cuda"
        config = MODELS[sizes.model]
        self.model: nn.Module = build_model(config, seed=0).to(self.device)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (8, ROWS[sizes.model], config.context + 1)
        random = torch.Generator().manual_seed(0)
        batches = torch.randint(0, config.vocab_size, shape, generator=random)
        self._batches_NBT1 = batches.to(self.device)

    def inner_step(self, number: int) -> None:
        tokens_BT1: Tensor = self._batches_NBT1[number % len(self._batches_NBT1)]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_gpu):
            loss = next_token_loss(self.model, tokens_BT1)  # pyright: ignore[reportArgumentType]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def now(self) -> float:
        """The time at which all steps so far are done."""
        if self._is_gpu:
            torch.cuda.synchronize(self.device)
        return time.monotonic()


def train_bare(sizes: Sizes) -> None:
    """Report the seconds of each window of steps."""
    training, moments = GpuTraining(sizes), list[float]()
    for number in range(WARMUP_STEPS + BARE_STEPS):
        if number >= WARMUP_STEPS and (number - WARMUP_STEPS) % WINDOW_STEPS == 0:
            moments.append(training.now())
        training.inner_step(number)
    moments.append(training.now())
    _tell(sizes, moments, {})


def train_as_peer(sizes: Sizes) -> None:
    """The same loop with a method; report the windows that count, and the seconds that the parts
    of `method.step()` took in them."""
    peer = attach()
    training, moments = GpuTraining(sizes), list[float]()
    method = TimedDiLoCo(training.model, training.optimizer, peer)
    for number, _ in enumerate(peer.batches()):
        if number % WINDOW_STEPS == 0:
            moments.append(training.now())
        training.inner_step(number)
        method.step()
    # The end of the run, where a rank waits for its last results, is left out. A run in which
    # others did not wait for this node was shorter for it.
    planned = (SETTLING_STEPS + (peer.run.outer_steps - 2) * ROUND_STEPS) // WINDOW_STEPS
    first, last = SETTLING_STEPS // WINDOW_STEPS, min(planned, len(moments) - 1)
    seconds = method.seconds(WINDOW_STEPS * first, WINDOW_STEPS * last)
    _tell(sizes, moments[first : last + 1], seconds)


def rest_as_peer(sizes: Sizes) -> None:
    """Contribute the parameters as they are, a little faster than the other node trains, which so
    never waits for this one: as a CPU's copies take long, the rests after them are shorter."""
    peer = attach()
    training = GpuTraining(sizes)
    method = StreamingDiLoCo(training.model, training.optimizer, peer)
    until = time.monotonic()
    for _ in peer.batches():
        until += PACE * sizes.step_s
        time.sleep(max(until - time.monotonic(), 0.0))
        method.step()
    _tell(sizes, [], {})


def _tell(sizes: Sizes, moments: list[float], seconds: dict[str, float]) -> None:
    told = {**asdict(sizes), "told": str(sizes.told), "moments": moments, "seconds": seconds}
    sizes.told.write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    mode, model, device, told, step_s = sys.argv[1:]
    sizes = Sizes(mode, model, device, Path(told), float(step_s))
    {"bare": train_bare, "peer": train_as_peer, "idle": rest_as_peer}[mode](sizes)


if __name__ == "__main__":
    main()
