"""Small networks that train in a second or two, healthy or with a fault planted: what the diagnosis is tried on.

    python benchmarks/patients.py [--seeds 10 11 12] [--write]

prints, and with --write puts into docs/diagnosis.md, which findings each planted fault raises: the confusion table.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.planner.finding import Finding

MARK, END = "<!-- table: python benchmarks/patients.py --write -->", "<!-- end of table -->"

STEPS = 240
WARMUP = 30

FAULTS = {
    "healthy": (),
    "lr x100 on a layer": ("layers-unbalanced", "layer-exploding"),
    "no decay on a layer": ("no-decay",),
    "no warmup at high lr": ("transient-too-fast",),
    "frozen layer": ("layer-frozen",),
    "one NaN": ("not-finite",),
    "L2 instead of decoupled": ("adam-l2",),
}
"""The faults, and the codes of which at least one must name it."""


class Cnn(nn.Module):
    """Three convolutions with batch normalisation, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 12, 24, 24)
        parts: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(widths)):
            parts += [nn.Conv2d(a, b, 3, stride=1 + (i > 0), padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.body(x).flatten(1))


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP, both after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (nn.functional.layer_norm(z, z.shape[-1:]) for z in (q, k))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """Two blocks, learnt positions, an output layer of its own."""

    def __init__(self, tokens: int = 32, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def images(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Noise, labelled by a random network."""
    g = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(2000, 1, 8, 8, generator=g)
    hidden = torch.randn(64, 32, generator=g) / 8
    scores = torch.relu(x.flatten(1) @ hidden) @ torch.randn(32, 10, generator=g)
    y = (scores + torch.randn(2000, 10, generator=g)).argmax(1)
    while True:
        batch = torch.randint(2000, (64,), generator=g)
        yield x[batch], y[batch]


def text(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A random Markov chain: the next token follows from the last two, through a random network."""
    g = torch.Generator().manual_seed(2000 + seed)
    one, two = torch.randn(32, 64, generator=g), torch.randn(32, 64, generator=g)
    pairs = torch.relu(one[:, None] + two)
    table = torch.softmax(0.6 * pairs @ torch.randn(64, 32, generator=g), -1)
    x = torch.randint(32, (2000, 33), generator=g)
    for t in range(2, 33):
        x[:, t] = torch.multinomial(table[x[:, t - 2], x[:, t - 1]], 1, generator=g)[:, 0]
    while True:
        batch = x[torch.randint(2000, (12,), generator=g)]
        yield batch[:, :-1], batch[:, 1:]


@dataclass(frozen=True)
class Patient:
    """A model with its data and the lr and weight decay that suit it, by optimizer."""

    model: Callable[[], nn.Module]
    data: Callable[[int], Iterator[tuple[Tensor, Tensor]]]
    settings: dict[str, tuple[float, float]]


PATIENTS = {
    "cnn": Patient(Cnn, images, {"adamw": (5e-3, 1.9), "lion": (2e-3, 4.7), "sgdm": (0.1, 9.3e-3)}),
    "gpt": Patient(Gpt, text, {"adamw": (5e-3, 1.9), "lion": (2e-3, 4.7)}),
}


def train(patient: str, optimizer: str, fault: str, seed: int, path: Path, **watch: Any) -> str:
    """Train a patient with a fault, watched; returns the name of the faulty layer, or nothing where it is all of them.

    Args:
        patient: its name.
        optimizer: "adamw" or "sgdm".
        fault: one of `FAULTS`.
        seed: of everything.
        path: directory of the run.
        **watch: arguments of `eq.watch`.
    """
    torch.manual_seed(seed)
    one = PATIENTS[patient]
    model, data = one.model(), one.data(seed)
    lr, wd = one.settings[optimizer]
    layers = [n for n, p in model.named_parameters() if p.ndim > 1 and n not in ("tokens.weight", "positions.weight")]
    # Of the layers before the last, by the seed: a head is often a special case.
    chosen = layers[seed % (len(layers) - 1)]
    faulty = fault not in ("healthy", "no warmup at high lr", "L2 instead of decoupled")
    named = dict(model.named_parameters())
    high = fault == "no warmup at high lr"
    if high:
        lr, wd = 20 * lr, wd / 20
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in named.items() if p.ndim > 1 and not (faulty and n == chosen)]},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if faulty:
        own: dict[str, Any] = {"params": [named[chosen]]}
        own |= {"lr x100 on a layer": {"lr": 100 * lr}, "no decay on a layer": {"weight_decay": 0.0}}.get(fault, {})
        groups.append(own)
    if fault == "frozen layer":
        named[chosen].requires_grad_(False)
    if optimizer == "sgdm":
        opt: torch.optim.Optimizer = torch.optim.SGD(groups, lr, 0.9, weight_decay=wd)
    elif optimizer == "lion":
        opt = eq.Lion(groups, lr, betas=(0.9, 0.99), weight_decay=wd)
    elif fault == "L2 instead of decoupled":
        opt = torch.optim.Adam(groups, lr, weight_decay=wd / 100)
    else:
        opt = torch.optim.AdamW(groups, lr, weight_decay=wd)
    curve = lambda t: min(1.0, (t + 1) / (1 if high else WARMUP))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, curve)
    with eq.watch(model, opt, path, **({"every": 1, "spectra": 20, "strict": True} | watch)) as seen:
        for step in range(STEPS):
            x, y = next(data)
            loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
            opt.zero_grad()
            loss.backward()
            if fault == "one NaN" and step == STEPS // 2:
                grad = named[chosen].grad
                assert grad is not None
                grad.view(-1)[0] = math.nan
            opt.step()
            schedule.step()
            seen.log(loss=loss)
    return chosen if faulty else ""


def findings(path: Path) -> list[Finding]:
    """What the diagnosis says."""
    with eq.Run.open(path) as run:
        return run.diagnose()


def cases() -> Iterator[tuple[str, str, str]]:
    """Each patient, optimizer and fault that go together: L2 is SGDM's own way."""
    for patient, one in PATIENTS.items():
        for optimizer in one.settings:
            for fault in FAULTS:
                if fault != "L2 instead of decoupled" or optimizer == "adamw":
                    yield patient, optimizer, fault


def confusion(seeds: list[int], only: str = "") -> str:
    """Train all patients, and count the findings of each fault: a table in Markdown."""
    rows: dict[str, Counter[str]] = {}
    for patient, optimizer, fault in cases():
        if only not in f"{patient} {optimizer} {fault}":
            continue
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                layer = train(patient, optimizer, fault, seed, Path(folder, "run"))
                found = findings(Path(folder, "run"))
            counted = rows.setdefault(fault, Counter())
            right = any(named(f, fault, layer) for f in found)
            counted.update({"runs": 1, "named": int(right)})
            counted.update({f.code for f in found})
            print(patient, optimizer, fault, seed, layer, "" if right or fault == "healthy" else "MISSED")
            for f in found:
                print("    ", f.severity, f.code, f.where, f.evidence, sep=" | ")
    codes = sorted({code for counted in rows.values() for code in counted} - {"runs", "named"})
    lines = [f"| planted | runs | named | {' | '.join(f'`{c}`' for c in codes)} |", "|---" * (len(codes) + 3) + "|"]
    for fault, counted in rows.items():
        right = "" if fault == "healthy" else str(counted["named"])
        lines.append(f"| {fault} | {counted['runs']} | {right} | {' | '.join(str(counted[c] or '') for c in codes)} |")
    return "\n".join(lines)


def named(finding: Finding, fault: str, layer: str) -> bool:
    """Whether a finding names the fault, at the right layer."""
    return finding.code in FAULTS[fault] and layer in ("", finding.where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22], help="seeds of the patients")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--write", action="store_true", help="put the table into docs/diagnosis.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = confusion(arguments.seeds, arguments.only)
    print(table)
    if arguments.write:
        page = Path(__file__).parents[1] / "docs" / "diagnosis.md"
        text = page.read_text()
        head, rest = text.split(MARK + "\n", 1)
        page.write_text(f"{head}{MARK}\n{table}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
