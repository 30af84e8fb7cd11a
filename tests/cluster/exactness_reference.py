"""DiLoCo with two peers as one plain loop on one thread: what real peers must agree with.

exactness_reference.py RUN.json CORPUS OUT.npz    (RUN.json: the agreed [run])

Leaves the outer parameters and momentum after each round ("outer", "momentum"; fp32 [rounds, P]),
where torch's own SGD gets with the same averaged pseudo-gradients ("sgd", "sgd_momentum"), and the
first moments of each peer's AdamW ("adam"; [rounds, PEERS, P]).
The outer arithmetic is written out once more: it must NOT come from lowcomm.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import RunConfig, run_from_json
from lowcomm.data.batches import Batches
from lowcomm.data.corpus import Corpus
from lowcomm.methods import DiLoCoMethod
from lowcomm.models.llama import build_model, next_token_loss

PEERS = 2


def reference(run: RunConfig, corpus: Corpus) -> dict[str, list[np.ndarray]]:
    """The trajectory of the run: for each name one array a round, fp32 [P]."""
    data, inner, method = run.data, run.optimizer, run.method
    assert isinstance(method, DiLoCoMethod)
    models = [build_model(run.model, seed=run.seed) for _ in range(PEERS)]
    adams = [
        torch.optim.AdamW(
            model.parameters(),
            betas=inner.betas,
            eps=inner.eps,
            weight_decay=inner.weight_decay,
            fused=True,
        )
        for model in models
    ]
    batches = Batches(corpus.train, window=data.window, seed=run.seed)
    schedule = CosineSchedule.of(run)
    outer = parameters_to_vector(models[0].parameters()).detach()
    momentum = torch.zeros_like(outer)
    by_torch = torch.nn.Parameter(outer.clone())
    sgd = torch.optim.SGD(
        [by_torch], lr=method.outer_lr, momentum=method.outer_momentum, nesterov=True
    )
    found: dict[str, list[np.ndarray]] = {
        name: [] for name in ("outer", "momentum", "sgd", "sgd_momentum", "adam")
    }
    for round_ in range(run.outer_steps):
        total = torch.zeros_like(outer)
        for peer, (model, adam) in enumerate(zip(models, adams, strict=True)):
            vector_to_parameters(outer.clone(), model.parameters())
            for step in range(round_ * method.inner_steps, (round_ + 1) * method.inner_steps):
                adam.param_groups[0]["lr"] = inner.lr * schedule(step)
                samples = batches.of(samples_of(run, peer, step))
                next_token_loss(model, torch.from_numpy(samples)).backward()
                clip_grad_norm_(model.parameters(), inner.grad_clip)
                adam.step()
                adam.zero_grad()
            total = total + (outer - parameters_to_vector(model.parameters()).detach())
        mean = total * 0.5
        # As torch.optim.SGD(nesterov=True), but each operation rounds by itself.
        momentum = momentum * method.outer_momentum
        momentum = momentum + mean
        step_P = momentum * method.outer_momentum
        step_P = step_P + mean
        outer = outer - step_P * method.outer_lr
        by_torch.grad = mean
        sgd.step()
        velocity = sgd.state[by_torch]["momentum_buffer"]
        moments = torch.stack([moments_of(*pair) for pair in zip(models, adams, strict=True)])
        for name, value in zip(found, (outer, momentum, by_torch, velocity, moments), strict=True):
            found[name].append(value.detach().numpy().copy())
    return found


def samples_of(run: RunConfig, peer: int, step: int) -> range:
    """Each gets eight rounds' samples at first, whoever started the run before the joiner."""
    assert isinstance(run.method, DiLoCoMethod)
    lease = 8 * run.method.inner_steps * run.data.batch
    first = peer * lease + step * run.data.batch
    assert first + run.data.batch <= (peer + 1) * lease, "the reference is for the first leases"
    return range(first, first + run.data.batch)


def moments_of(model: torch.nn.Module, adam: torch.optim.Optimizer) -> torch.Tensor:
    return torch.cat([adam.state[each]["exp_avg"].flatten() for each in model.parameters()])


def main(run_path: Path, corpus: Path, out: Path) -> None:
    torch.set_num_threads(1)
    run = run_from_json(run_path.read_text(encoding="utf-8"))
    found = reference(run, Corpus.open(corpus))
    arrays: Mapping[str, Any] = {name: np.stack(rounds) for name, rounds in found.items()}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
