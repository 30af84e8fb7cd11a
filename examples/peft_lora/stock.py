"""A stock program that trains LoRA adapters of PEFT by Hugging Face's Trainer.

The base is a small Llama with random weights, so that nothing is downloaded: load yours by
`from_pretrained`. `node.py` beside it is the same program as a node of a run. Needs the extra `hf`.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
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
    initializer_range=0.1,
    attention_dropout=0.1,
)
arguments = TrainingArguments(
    output_dir="out",
    max_steps=300,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    warmup_steps=20,
    lr_scheduler_type="cosine",
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
torch.manual_seed(1)
base = LlamaForCausalLM(config)
lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
model = get_peft_model(base, lora)
trainer = Trainer(model, arguments, train_dataset=Windows())
trainer.train()
