"""The built-in training program: one rank of a node trains the Llama of `[run.model]`.

Its loop is a model for a user's own program. Must NOT know of other nodes.
"""

import os
import sys

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

from lowcomm import methods
from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import BYTE_VALUES, MuonConfig, RunConfig
from lowcomm.data.tokenizer import Tokenizer
from lowcomm.exit_codes import EXIT_CONFIG
from lowcomm.flexdemo.method import FlexDeMo
from lowcomm.models.llama import Llama
from lowcomm.program.evaluate import generate, held_out_loss
from lowcomm.program.muon import Muon
from lowcomm.program.process_group import join_node, leave_node, rank_device
from lowcomm.program.progress_meter import ProgressMeter
from lowcomm.program.trained_model import add_gradients, make_model
from lowcomm.training.attach import Peer, attach
from lowcomm.training.round_methods import ROUND_METHODS, Method
from lowcomm.training.step_methods import AllReduce
from protocols.types import ConfigError

PROMPT = "def "
SAMPLE_TOKENS = 200
SAMPLE_TEMPERATURE = 0.8
STEP_METHODS = {each.name: each for each in (AllReduce, FlexDeMo)}
"""Classes of stepwise methods by `run.method.name`."""


def main() -> int:
    """Train until the run has finished; return the exit status. Needs the environment variables
    that the daemon sets."""
    try:
        return _train()
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_CONFIG


def _train() -> int:
    peer = attach()
    run = peer.run
    with peer.fitting():
        device = rank_device(peer.node.device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
        tokenizer = open_tokenizer(peer)  # If it is a wrong one, no step is made in vain.
    # One thread by default, which also makes a CPU trajectory repeat bit by bit.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(run.seed)
    node = peer.node
    is_mixed = node.compute != "fp32"  # FSDP2 mixes types, also for one rank.
    mesh = join_node(device, world_size=peer.world_size, also_alone=is_mixed)
    with peer.fitting():
        model = make_model(run, node, mesh=mesh, device=device)
    optimizer = make_optimizer(model, run)
    schedule = CosineSchedule.of(run)
    make = STEP_METHODS.get(run.method.name)
    if make is None:
        method = ROUND_METHODS[run.method.name](model, optimizer, peer, schedule=schedule)
    else:
        assert not isinstance(optimizer, Muon), "the configuration was checked"
        method = make(model, optimizer, peer, schedule=schedule)
    progress_meter = ProgressMeter(peer, device)
    evaluate_if_due(model, peer, tokenizer)
    for tokens_BT1 in peer.batches():
        loss = add_gradients(model, tokens_BT1, at_once=node.micro_batch, device=device)
        # AllReduce clips the mean of all nodes' gradients.
        if run.optimizer.grad_clip > 0 and not isinstance(method, AllReduce):
            clip_grad_norm_(model.parameters(), run.optimizer.grad_clip)
        if isinstance(method, Method):
            optimizer.step()
            optimizer.zero_grad()
        method.step()  # A per-step method makes the optimizer step itself, from all nodes' data.
        progress_meter.count(loss)
        evaluate_if_due(model, peer, tokenizer)
    progress_meter.report()
    leave_node()
    peer.close()
    return 0


def make_optimizer(model: Llama, run: RunConfig) -> SGD | AdamW | Muon:
    """The optimizer that `[run.optimizer]` and the method describe. Sharding replaces the
    parameters, so call this afterwards."""
    config = run.optimizer
    if isinstance(run.method, methods.FlexDeMoMethod) and run.method.step == "sgd":
        return SGD(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    if isinstance(config, MuonConfig):
        matrices = [each for each in model.model.layers.parameters() if each.ndim == 2]
        stepped = set(matrices)
        return Muon(
            matrices,
            [each for each in model.parameters() if each not in stepped],
            lr=config.lr,
            momentum=config.momentum,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
    return AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,  # Takes a third of the time of a loop over the parameters, on the CPU too.
    )


def open_tokenizer(peer: Peer) -> Tokenizer | None:
    """The tokenizer that turns this run's tokens into text; None if they are bytes, or this node
    has none. Raises ConfigError."""
    run, path = peer.run, peer.node.tokenizer
    return Tokenizer(path) if path and not run.data.tokens_are_bytes else None


def evaluate_if_due(model: Llama, peer: Peer, tokenizer: Tokenizer | None) -> None:
    """If the daemon asked for it, report the held-out loss of the parameters that the ranks hold
    now, and at the end a sample. All ranks run this in lockstep."""
    if not peer.evaluation_due:
        return
    run = peer.run
    with peer.fitting():
        loss = held_out_loss(
            model,
            peer.corpus.held_out,
            windows=run.data.eval_windows,
            window=run.data.eval_window,
            seed=run.seed,
        )
    # A text takes longer than the loss.
    last = peer.finished or not run.data.eval_every_rounds
    sample = sample_text(model, run, tokenizer) if last else ""
    peer.evaluated(loss=loss, windows=run.data.eval_windows, sample=sample)


def sample_text(model: Llama, run: RunConfig, tokenizer: Tokenizer | None) -> str:
    """A text that the model has written; "" if its tokens are not bytes, and there is no tokenizer
    for them."""
    if tokenizer is None and not run.data.tokens_are_bytes:
        return ""
    values = BYTE_VALUES if tokenizer is None else min(tokenizer.vocab_size, run.model.embeddings)
    prompt = [*PROMPT.encode()] if tokenizer is None else tokenizer.encode([PROMPT])[0]
    prompt = [token for token in prompt if token < values]  # That of shards may be of other ones.
    written = generate(
        model,
        prompt,
        tokens=SAMPLE_TOKENS,
        temperature=SAMPLE_TEMPERATURE,
        seed=run.seed,
        values=values,
    )
    whole = prompt + written
    return tokenizer.text_of(whole) if tokenizer else bytes(whole).decode("utf-8", "replace")
