"""One training process of the GPU benchmark:
`benchmarks.gpus.gpu_node MODE MODEL DEVICE FILE STEP_S`.

`bare` trains without lowcomm, `peer` trains as a rank of a node, `idle` is a rank on the CPU that
rests instead of training. All have the same model. Must NOT measure inside of a step: a GPU works
asynchronously, and the step's time is the time between two synchronised moments.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from lowcomm import StreamingDiLoCo, attach
from lowcomm.config import ModelConfig
from lowcomm.models import build_model, next_token_loss

ROUND_STEPS = 100
"""Inner steps of a round."""
WINDOW_STEPS = 25
"""Steps between two synchronised moments."""
BARE_STEPS = 200
WARMUP_STEPS = 50
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
    "small": ModelConfig(context=64),
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
    _tell(sizes, moments, waits=[])


def train_as_peer(sizes: Sizes) -> None:
    """The same loop with a method; report the windows, and the seconds of each `method.step()` that
    waited."""
    peer = attach()
    training, moments = GpuTraining(sizes), list[float]()
    method = StreamingDiLoCo(training.model, training.optimizer, peer)
    waits: list[float] = []
    for number, _ in enumerate(peer.batches()):
        if number % WINDOW_STEPS == 0:
            moments.append(training.now())
        training.inner_step(number)
        began = time.monotonic()
        method.step()
        waits.append(time.monotonic() - began)
    _tell(sizes, moments, waits)


def rest_as_peer(sizes: Sizes) -> None:
    """Contribute the initial parameters again and again, at the pace of the other node."""
    peer = attach()
    training = GpuTraining(sizes)
    method = StreamingDiLoCo(training.model, training.optimizer, peer)
    for _ in peer.batches():
        time.sleep(sizes.step_s)
        method.step()
    _tell(sizes, [], waits=[])


def _tell(sizes: Sizes, moments: list[float], waits: list[float]) -> None:
    told = {**asdict(sizes), "told": str(sizes.told), "moments": moments, "waits": waits}
    sizes.told.write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    mode, model, device, told, step_s = sys.argv[1:]
    sizes = Sizes(mode, model, device, Path(told), float(step_s))
    {"bare": train_bare, "peer": train_as_peer, "idle": rest_as_peer}[mode](sizes)


if __name__ == "__main__":
    main()
