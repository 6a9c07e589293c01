"""Hugging Face Trainer: rotational AdamW, a schedule and a watch, stopped and resumed to the bit by its checkpoints.

    python examples/hugging_face.py out --until 20     # stops after 20 of 40 steps
    python examples/hugging_face.py out                # goes on

What was measured is in `out/run`.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import equipoise as eq
from equipoise import schedules
from equipoise.monitor.frameworks.huggingface import WatchCallback

STEPS = 40

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out", type=Path)
parser.add_argument("--until", type=int, default=STEPS)
given = parser.parse_args()


class Until(TrainerCallback):
    """Ends early, as a job whose time is over."""

    def on_step_end(self, args, state, control, **kwargs):  # noqa: D102
        control.should_training_stop |= state.global_step >= given.until


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
optimizer = eq.RotationalAdamW(eq.param_groups(model), lr=3e-3, weight_decay=0.1)
scheduler = schedules.Scheduler(optimizer, lr=schedules.cosine(STEPS, peak=3e-3))
tokens = torch.randint(64, (256, 32)).sort(1).values  # rows that rise: there is something to learn
data = [{"input_ids": row, "labels": row} for row in tokens]

arguments = TrainingArguments(
    output_dir=str(given.out), max_steps=STEPS, per_device_train_batch_size=8, save_steps=20, logging_steps=5,
    use_cpu=True, report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    model, arguments, train_dataset=data, optimizers=(optimizer, scheduler),  # type: ignore[arg-type]
    callbacks=[WatchCallback(given.out / "run"), Until()],
)  # fmt: skip
trainer.train(resume_from_checkpoint=any(given.out.glob("checkpoint-*")))
