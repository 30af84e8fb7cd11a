"""A loop of one's own with Hugging Face's accelerate: a small Llama, trained from scratch.

`node.py` beside it is the same program as a node of a run. Needs the extra `hf`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import lowcomm


class Windows(torch.utils.data.Dataset):
    """Windows of 64 bytes of a source file of Python's standard library; each byte is a token."""

    def __init__(self):
        self.data = torch.tensor(list(Path(argparse.__file__).read_bytes()))

    def __len__(self):
        return len(self.data) - 64

    def __getitem__(self, index):
        window = self.data[index : index + 64]
        return {"input_ids": window, "labels": window}


config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=172,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    attention_dropout=0.1,
)
torch.manual_seed(1)
peer = lowcomm.attach()
accelerator = Accelerator(cpu=True)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = get_cosine_schedule_with_warmup(optimizer, 20, 300)
loader = torch.utils.data.DataLoader(Windows(), batch_sampler=lowcomm.Sampler(peer, Windows()))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
method = lowcomm.DiLoCo(model, optimizer.optimizer, peer)
scheduler = lowcomm.lr_scheduler(scheduler, method)

for step, batch in enumerate(loader):
    if method.finished:
        break
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    method.step()
    scheduler.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
