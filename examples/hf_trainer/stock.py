"""A stock program of Hugging Face's Trainer: a small Llama, trained from scratch.

`node.py` beside it is the same program as a node of a run. Needs the extra `hf`.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


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
arguments = TrainingArguments(
    output_dir="out",
    max_steps=300,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    warmup_steps=20,
    lr_scheduler_type="cosine",
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
torch.manual_seed(1)
model = LlamaForCausalLM(config)
trainer = Trainer(model, arguments, train_dataset=Windows())
trainer.train()
