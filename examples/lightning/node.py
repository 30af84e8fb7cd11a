"""A stock program of Lightning: a small network predicts the next byte of a text.

`node.py` beside it is the same program as a node of a run. Needs the extra `lightning`.
"""

import argparse
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lowcomm.integrations.lightning import LightningNode


class Windows(torch.utils.data.Dataset):
    """Windows of 64 bytes of a source file of Python's standard library; each byte is a token."""

    def __init__(self):
        self.data = torch.tensor(list(Path(argparse.__file__).read_bytes()))

    def __len__(self):
        return len(self.data) - 64

    def __getitem__(self, index):
        return self.data[index : index + 64], self.data[index + 64]


class NextByte(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(256, 16),
            nn.Flatten(),
            nn.Linear(64 * 16, 128),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(128, 256),
        )

    def training_step(self, batch):
        windows, following = batch
        return nn.functional.cross_entropy(self.layers(windows), following)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


torch.manual_seed(1)
loader = DataLoader(Windows(), batch_size=16, shuffle=True)
node = LightningNode()
trainer = Trainer(
    callbacks=[node],
    max_steps=300,
    accelerator="cpu",
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(NextByte(), node.leased(loader))
