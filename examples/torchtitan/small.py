"""A job of torchtitan: its own small Llama on the bytes of a source file of Python's library.

A registry of configurations, as torchtitan's are, for `--module small --config debugmodel`. As a
node of a run: `--module lowcomm.integrations.torchtitan --config small.debugmodel`. Needs the extra
`titan`; without a GPU, on_cpu.py beside it.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import datasets
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import TrainingConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3.config_registry import llama3_debugmodel


class ByteTokenizer(BaseTokenizer):
    """Each byte is a token."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text, add_bos=False, add_eos=False):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self):
        return 256


DATASETS["argparse"] = DatasetConfig(
    path=argparse.__file__,
    loader=lambda path: datasets.Dataset.from_dict({"text": [Path(path).read_text("utf-8")]}),
    sample_processor=lambda sample: sample["text"],
)


def debugmodel():
    job = llama3_debugmodel()
    job.tokenizer = ByteTokenizer.Config()
    job.dataloader.dataset = "argparse"
    job.training = TrainingConfig(
        seq_len=64,
        local_batch_size=2,
        global_batch_size=4,
        steps=100,
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    job.parallelism.spmd_backend = "partial_dtensor"  # Others need a torch above 2.13.
    job.metrics.log_freq = 5
    return job
