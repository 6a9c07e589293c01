"""Lightning: rotational AdamW, a schedule and a watch, stopped and resumed to the bit by its checkpoints.

    python examples/lightning_fit.py out --until 20     # stops after 20 of 40 steps
    python examples/lightning_fit.py out                # goes on

What was measured is in `out/run`.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise import schedules
from equipoise.monitor.frameworks.lightning import WatchCallback

STEPS = 40

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out", type=Path)
parser.add_argument("--until", type=int, default=STEPS)
args = parser.parse_args()


class Classifier(lightning.LightningModule):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch, index):  # noqa: D102
        noise = torch.Generator().manual_seed(self.global_step)  # the batch is a function of the step
        x = torch.randn(64, 16, generator=noise)
        return nn.functional.cross_entropy(self.net(x), x[:, :4].argmax(1))

    def configure_optimizers(self) -> Any:  # noqa: D102
        optimizer = eq.RotationalAdamW(eq.param_groups(self), lr=1e-2, weight_decay=0.1)
        scheduler = schedules.Scheduler(optimizer, lr=schedules.cosine(STEPS, peak=1e-2))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(0)
trainer = lightning.Trainer(
    max_steps=args.until, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, default_root_dir=args.out, callbacks=[WatchCallback(args.out / "run")],
)  # fmt: skip
checkpoint = args.out / "last.ckpt"
trainer.fit(
    Classifier(),
    DataLoader(TensorDataset(torch.zeros(STEPS))),
    ckpt_path=str(checkpoint) if checkpoint.exists() else None,
)
trainer.save_checkpoint(checkpoint)
