"""A program of another project's trainer, which tests/cluster/test_integrations.py kills.

kept_trainer.py TRAINER OUT STEP    at inner step STEP of its first start it ends itself by SIGKILL

Must NOT import the package of TRAINER before it is needed: mostly it is not there.
"""

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset

ITEMS = 64
RATE, DECAY = 0.05, 0.97


class Points(Dataset[dict[str, Tensor]]):
    """Points of a plane, each with its sum."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.tensor([index / ITEMS, (index * 7 % ITEMS) / ITEMS])
        return {"x": x, "labels": x.sum(dim=0, keepdim=True)}


class Net(nn.Module):
    """A small network with dropout, which shows whether random numbers go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.25), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x), labels)}


class Killer:
    """Ends this process at a step of the run, if it began with the run."""

    def __init__(self, dies_at: int) -> None:
        self._dies_at = dies_at
        self.first = -1

    def before_step(self, run_step: int) -> None:
        if self.first < 0:
            self.first = run_step
        if run_step == self._dies_at and self.first == 0:
            time.sleep(1.0)  # The state of the last round is written meanwhile.
            os.kill(os.getpid(), signal.SIGKILL)


def by_hugging_face(model: nn.Module, killer: Killer) -> float:
    """Train; return the last learning rate."""
    transformers: Any = import_module("transformers")
    node: Any = import_module("lowcomm.integrations.huggingface")

    class Kill(transformers.TrainerCallback):
        def on_step_begin(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            killer.before_step(state.global_step)

    arguments = transformers.TrainingArguments(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        max_grad_norm=1.0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    both = (optimizer, ExponentialLR(optimizer, DECAY))
    trainer = transformers.Trainer(model, arguments, train_dataset=Points(), optimizers=both)
    torch.manual_seed(3)  # The trainer has set its own.
    trainer.add_callback(node.TrainerNode(trainer))
    trainer.add_callback(Kill())
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps
    return optimizer.param_groups[0]["lr"]


def by_lightning(model: nn.Module, killer: Killer) -> float:
    """Train; return the last learning rate."""
    lightning: Any = import_module("lightning")
    integration: Any = import_module("lowcomm.integrations.lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            killer.before_step(node.run_step)
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)
            scheduler = {"scheduler": ExponentialLR(optimizer, DECAY), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    node = integration.LightningNode()
    trainer = lightning.Trainer(
        callbacks=[node],
        max_epochs=1,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), node.leased(DataLoader(Points(), batch_size=2), accumulated=2))
    return trainer.optimizers[0].param_groups[0]["lr"]


def main(trainer: str, out: Path, dies_at: int) -> None:
    torch.manual_seed(3)
    model, killer = Net(), Killer(dies_at)
    rate = (by_hugging_face if trainer == "hf" else by_lightning)(model, killer)
    found: dict[str, Any] = {
        "first": killer.first,
        "rate": rate,
        "model": [x.tolist() for x in model.parameters()],
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
