"""Tune a small GPT on Python's own sources, with eight runs' worth of compute.

python examples/tune_gpt.py                                    # here, one trial after the other
equipoise tune examples/tune_gpt.py --trials 8                 # the same, and it goes on after Ctrl-C
equipoise tune examples/tune_gpt.py --trials 8 --on ray --jobs 4
"""

import os
from pathlib import Path

import torch
from torch import nn

import equipoise as eq

STEPS, BATCH, LENGTH = int(os.environ.get("STEPS", "300")), 16, 32
text = torch.tensor(list(b"".join(p.read_bytes() for p in sorted(Path(os.__file__).parent.glob("*.py"))[:40])))


class GPT(nn.Module):
    """Two blocks, byte by byte; the table of bytes is the output layer, too."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks, self.norm = nn.TransformerEncoder(block, layers, enable_nested_tensor=False), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte at every place."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        h = self.blocks(self.tokens(x) + self.places.weight, mask=mask, is_causal=True)
        return self.norm(h) @ self.tokens.weight.T / 8


def make() -> GPT:
    """A model with the same weights each time."""
    torch.manual_seed(0)
    return GPT()


def train(trial: eq.tuning.Trial) -> float:
    """Train one trial; its loss is the mean of the last 20 steps."""
    model, losses = make(), list[float]()
    groups = eq.param_groups(model)
    optimizer = torch.optim.AdamW(groups, lr=trial.lr, weight_decay=trial.weight_decay, betas=(0.9, 0.95))
    scheduler = eq.schedules.Scheduler(optimizer, lr=eq.schedules.wsd(STEPS, warmup=STEPS // 20), relative=True)
    for step in range(STEPS):
        at = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=torch.Generator().manual_seed(step))
        rows = text[at + torch.arange(LENGTH + 1)]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if step % 20 == 19:
            trial.report(step, sum(losses[-20:]) / 20)
    return sum(losses[-20:]) / 20


space = eq.suggest(
    make(), steps=STEPS, batch_size=BATCH, dataset_size=len(text) // LENGTH, tokens_per_sample=LENGTH, optimizer="adamw"
)
if __name__ == "__main__":
    found = eq.tune(train, space=space, trials=8, seed=0)
    print(f"lr {found.best['lr']:.3g}, weight decay {found.best['weight_decay']:.3g}: loss {found.loss:.3f}")
