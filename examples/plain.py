"""A loop of one's own: rotational AdamW, a schedule and a watch, stopped and resumed to the bit.

    python examples/plain.py out --until 20     # stops after 20 of 40 steps
    python examples/plain.py out                # goes on

What was measured is in `out/run`.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import equipoise as eq
from equipoise import schedules

STEPS = 40

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out", type=Path)
parser.add_argument("--until", type=int, default=STEPS)
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
optimizer = eq.RotationalAdamW(eq.param_groups(model), lr=1e-2, weight_decay=0.1)
scheduler = schedules.Scheduler(optimizer, lr=schedules.cosine(STEPS, peak=1e-2))
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

first, checkpoint = 0, args.out / "checkpoint.pt"
if checkpoint.exists():
    saved = torch.load(checkpoint, weights_only=True)
    first = saved.pop("step")
    for name, state in saved.items():
        parts[name].load_state_dict(state)

with eq.watch(model, optimizer, args.out / "run", resume=first or False) as watch:
    for step in range(first, args.until):
        noise = torch.Generator().manual_seed(step)  # the batch is a function of the step
        x = torch.randn(64, 16, generator=noise)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watch.log(loss=loss)

torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": args.until}, checkpoint)
print(f"{args.until} of {STEPS} steps")
