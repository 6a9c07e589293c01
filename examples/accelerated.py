"""accelerate: rotational AdamW, a schedule and a watch, stopped and resumed to the bit by its own checkpoints.

    python examples/accelerated.py out --until 20     # stops after 20 of 40 steps
    python examples/accelerated.py out                # goes on

What was measured is in `out/run`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import equipoise as eq
from equipoise import schedules

STEPS = 40

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out", type=Path)
parser.add_argument("--until", type=int, default=STEPS)
args = parser.parse_args()

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)  # else once for each process at every step
model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
optimizer = eq.RotationalAdamW(eq.param_groups(model), lr=1e-2, weight_decay=0.1)
scheduler = schedules.Scheduler(optimizer, lr=schedules.cosine(STEPS, peak=1e-2))
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

checkpoint = args.out / "checkpoint"
if checkpoint.exists():
    accelerator.load_state(str(checkpoint))
first = scheduler.scheduler.last_epoch

with eq.watch(model, optimizer, args.out / "run", resume=first or False) as watch:
    for step in range(first, args.until):
        noise = torch.Generator().manual_seed(step)  # the batch is a function of the step
        x = torch.randn(64, 16, generator=noise).to(accelerator.device)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        watch.log(loss=loss)

accelerator.save_state(str(checkpoint))
print(f"{args.until} of {STEPS} steps")
