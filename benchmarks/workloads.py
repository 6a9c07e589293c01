"""Small real workloads, each of which trains in seconds: what findings are chosen and judged on.

A workload is a family of models, an optimizer, and a part. Thresholds of findings are chosen on the part "chosen". The
others have other data, other sizes, other seeds and other texts, and are run when nothing is changed any more;
docs/diagnosis.md reports all.

    python benchmarks/workloads.py [--part chosen] [--only gpt]

trains the healthy ones and prints how far their loss falls, and what the watch finds.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.finding import Finding
from equipoise.lab.data import Data, Split, digits, fashion, text
from equipoise.lab.models import Gpt, Vit, mlp

STEPS = 400
STDLIB = Path(sysconfig.get_paths()["stdlib"])
FAMILIES = ("gpt", "vit", "resnet", "mlp", "lora", "finetune")
OPTIMIZERS = ("adamw", "sgdm", "lion", "muon")

SETTINGS = {
    "gpt": {"adamw": (3e-3, 0.1), "sgdm": (0.3, 1e-4), "lion": (1e-3, 0.3), "muon": (0.02, 0.1)},
    "vit": {"adamw": (4e-3, 0.1), "sgdm": (0.1, 1e-4), "lion": (1e-3, 0.3), "muon": (0.02, 0.1)},
    "resnet": {"adamw": (3e-3, 0.05), "sgdm": (0.1, 5e-4), "lion": (1e-3, 0.3), "muon": (0.02, 0.1)},
    "mlp": {"adamw": (1e-3, 0.01), "sgdm": (0.05, 5e-4), "lion": (5e-4, 0.3), "muon": (0.02, 0.1)},
    "lora": {"adamw": (3e-3, 0.0), "sgdm": (0.05, 0.0), "lion": (5e-4, 0.0), "muon": (0.01, 0.0)},
    "finetune": {"adamw": (3e-4, 0.01), "sgdm": (0.03, 0.0), "lion": (1e-4, 0.1), "muon": (2e-3, 0.01)},
}
"""lr and weight decay of each family by optimizer: those that people use, and that train well here."""


@dataclass(frozen=True)
class Part:
    """What the workloads of one part have in common.

    Attributes:
        seed: the first of its seeds.
        lr: factor on the usual lr.
        fashion: the first of its images of Fashion-MNIST, where that is installed; None for digits.
        documents: the folder or file whose text GPTs learn.
        tuning: the one that pretrained GPTs are tuned on.
        depth: of transformers and residual networks, and hidden layers of an MLP.
        width: of them.
        side: pixels of a patch's side.
    """

    seed: int
    lr: float
    fashion: int | None
    documents: Path | None
    tuning: Path
    depth: int
    width: int
    side: int

    @property
    def images(self) -> Data:
        """The images that others learn."""
        if self.fashion is None:
            return digits(seed=self.seed)
        try:
            data = fashion(size=self.fashion + 4000).train
        except ValueError:  # it is not installed
            return digits(seed=self.seed)
        x, y = data.take(slice(self.fashion, None))  # type: ignore[attr-defined]
        return Data("fashion", "classes", Split(nn.functional.avg_pool2d(x, 2), y), None, 10)


PARTS = {
    "chosen": Part(0, 1.0, None, None, STDLIB / "pydoc_data" / "topics.py", 2, 32, 2),
    "reported": Part(100, 1.0, 0, STDLIB / "asyncio", STDLIB / "email", 3, 48, 7),
    "again": Part(200, 0.5, 10_000, STDLIB / "unittest", STDLIB / "http", 2, 40, 7),
    "last": Part(300, 0.75, 20_000, STDLIB / "xml", STDLIB / "logging", 3, 36, 7),
    "fresh": Part(400, 1.25, 30_000, STDLIB / "multiprocessing", STDLIB / "importlib", 2, 56, 7),
}


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer."""

    family: str
    optimizer: str
    part: str

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.family} {self.optimizer}"

    def __str__(self) -> str:
        return f"{self.name}, {self.part}"

    @property
    def number(self) -> int:
        """Its place among those of its part."""
        return FAMILIES.index(self.family) * len(OPTIMIZERS) + OPTIMIZERS.index(self.optimizer)

    @property
    def seed(self) -> int:
        """Of weights, batches, and the layer that a fault is planted in."""
        return PARTS[self.part].seed + self.number

    @property
    def plain(self) -> bool:
        """Whether it trains as the shortest script does: a constant lr, one group for everything."""
        return (FAMILIES.index(self.family) + OPTIMIZERS.index(self.optimizer)) % 2 == 0


def healthy(part: str) -> list[Workload]:
    """All of a part."""
    return [Workload(family, optimizer, part) for family in FAMILIES for optimizer in OPTIMIZERS]


# Models


class Residual(nn.Module):
    """Two convolutions with batch normalisation beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.norm_1(self.conv_1(x)).relu()
        return (x + self.norm_2(self.conv_2(y))).relu()


class ResNet(nn.Module):
    """A stem that halves the side, residual blocks, the mean over places, and a linear head."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3)))


class LoRALinear(nn.Module):
    """A frozen linear layer plus B·A, with B at zero: [hu2022]."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.base(x) + 2.0 * nn.functional.linear(nn.functional.linear(x, self.a), self.b)


@cache
def _text(part: str, tuning: bool) -> Data:
    one = PARTS[part]
    return text(path=one.tuning if tuning else one.documents, size=300_000, length=32)


@cache
def _images(part: str) -> Data:
    return PARTS[part].images


def _gpt(part: str) -> Gpt:
    one = PARTS[part]
    return Gpt(256, 32, one.depth, one.width, 2)


@cache
def _pretrained(part: str) -> dict[str, Tensor]:
    """The weights of a GPT that has learnt the part's text."""
    torch.manual_seed(PARTS[part].seed)
    model = _gpt(part)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    data = batches(_text(part, tuning=False), 16, PARTS[part].seed)
    for _ in range(600):
        optimizer.zero_grad()
        loss_of(model, *next(data)).backward()
        optimizer.step()
    return model.state_dict()


def model_of(workload: Workload) -> tuple[nn.Module, Data]:
    """A new model, and what it learns."""
    part = PARTS[workload.part]
    pretrained = _pretrained(workload.part) if workload.family in ("lora", "finetune") else None
    torch.manual_seed(workload.seed)
    match workload.family:
        case "gpt":
            return _gpt(workload.part), _text(workload.part, tuning=False)
        case "vit":
            data = _images(workload.part)
            side = data.train.x.shape[-1]  # type: ignore[attr-defined]
            return Vit(1, side, 10, part.depth, part.width, 2, part.side if side % part.side == 0 else 2), data
        case "resnet":
            return ResNet(part.depth, part.width // 2), _images(workload.part)
        case "mlp":
            data = _images(workload.part)
            return mlp(data, width=2 * part.width, depth=part.depth, norm="none"), data
    model = _gpt(workload.part)
    assert pretrained is not None
    model.load_state_dict(pretrained)
    if workload.family == "lora":
        model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and name.endswith((".q", ".kv", ".up", ".down")):
                parent, _, own = name.rpartition(".")
                setattr(model.get_submodule(parent), own, LoRALinear(module))
    return model, _text(workload.part, tuning=True)


def batches(data: Data, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches without end."""
    g = torch.Generator().manual_seed(seed)
    while True:
        yield data.train.take(torch.randint(len(data.train), (size,), generator=g))  # type: ignore[attr-defined]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy."""
    return nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


# Training


@dataclass
class Trial:
    """One training run before it starts: what a fault may change."""

    workload: Workload
    model: nn.Module
    lr: float
    weight_decay: float
    layer: str
    """The layer that a fault is planted in, where it is of one layer."""
    own: dict[str, Any] = field(default_factory=dict)
    """Options of that layer's own group."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of AdamW."""
    rule: str = ""
    """Another optimizer: "adam"."""
    curve: Callable[[int], float] = lambda t: 1.0
    """The factor on lr after t steps."""
    clip: float | None = None
    zero_grad: bool = True
    sign: float = 1.0
    spoil: Callable[[int], None] | None = None
    """Is called with the number of the step before the optimizer steps."""

    @property
    def weight(self) -> nn.Parameter:
        """The weights of the layer."""
        return self.model.get_parameter(self.layer)

    @property
    def module(self) -> nn.Module:
        """The layer itself."""
        return self.model.get_submodule(self.layer.rpartition(".")[0])


def inner_layers(model: nn.Module) -> list[str]:
    """Trained matrices that are neither embeddings nor the output layer."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return [
        n
        for n, p in model.named_parameters()
        if p.ndim > 1 and p.requires_grad and id(p) not in embeddings and not n.startswith(("head", "patches", "stem"))
    ]


def trial_of(workload: Workload) -> tuple[Trial, Data]:
    """The healthy trial of a workload, and its data."""
    model, data = model_of(workload)
    lr, weight_decay = SETTINGS[workload.family][workload.optimizer]
    lr *= PARTS[workload.part].lr
    layers = inner_layers(model)
    trial = Trial(workload, model, lr, weight_decay, layers[workload.seed % len(layers)])
    if not workload.plain:
        curve = eq.schedules.warmup_cosine(peak=1.0, warmup=STEPS // 10, steps=STEPS + 1)
        trial.curve = lambda t: float(curve.values(STEPS + 1)[t])
    return trial, data


def optimizers_of(trial: Trial) -> list[torch.optim.Optimizer]:
    """The optimizer, or Muon and AdamW for what Muon is not for."""
    kind, model = trial.rule or trial.workload.optimizer, trial.model
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    inner = set(inner_layers(model))
    own = named.pop(trial.layer) if trial.own else None
    groups: list[dict[str, Any]] = [{"params": list(named.values())}]
    if not trial.workload.plain or trial.own:
        vectors = [p for p in named.values() if p.ndim < 2]
        groups = [{"params": [p for p in named.values() if p.ndim > 1]}]
        groups += [{"params": vectors, "weight_decay": 0.0}] if vectors else []
    last = [] if own is None else [{"params": [own], **trial.own}]
    lr, wd = trial.lr, trial.weight_decay
    match kind:
        case "sgdm":
            return [torch.optim.SGD(groups + last, lr, 0.9, weight_decay=wd)]
        case "lion":
            return [eq.Lion(groups + last, lr, betas=(0.9, 0.99), weight_decay=wd)]
        case "adam":
            return [torch.optim.Adam(groups + last, lr, weight_decay=wd, **trial.options)]
        case "muon":
            matrices = [p for n, p in named.items() if n in inner]
            rest = [p for n, p in named.items() if n not in inner]
            found: list[torch.optim.Optimizer] = [eq.Muon([{"params": matrices}, *last], lr, weight_decay=wd)]
            return found + ([torch.optim.AdamW(rest, 3e-3 * lr / 0.02, weight_decay=wd)] if rest else [])
    return [torch.optim.AdamW(groups + last, lr, weight_decay=wd, **trial.options)]


def run(trial: Trial, data: Data, path: Path, **watch: Any) -> list[float]:
    """Train, watched; the losses.

    Args:
        trial: what to train.
        data: what it learns.
        path: directory of the run.
        **watch: arguments of `eq.watch`; none is what findings must be right with.
    """
    optimizers = optimizers_of(trial)
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, trial.curve) for one in optimizers]
    size = 8 if data.task == "tokens" else 32
    stream = batches(data, size, trial.workload.seed)
    losses = []
    with eq.watch(trial.model, optimizers, path, **watch) as seen:
        for step in range(1, STEPS + 1):
            loss = loss_of(trial.model, *next(stream))
            if trial.zero_grad:
                for one in optimizers:
                    one.zero_grad()
            (trial.sign * loss).backward()
            if trial.spoil is not None:
                trial.spoil(step)
            if trial.clip is not None:
                nn.utils.clip_grad_norm_(trial.model.parameters(), trial.clip)
            for one, schedule in zip(optimizers, schedules, strict=True):
                one.step()
                schedule.step()
            seen.log(loss=loss)
            losses.append(loss.item())
    return losses


@dataclass(frozen=True)
class Outcome:
    """What a run was like.

    Attributes:
        losses: of every step.
        findings: what `run.diagnose` says of it at the end.
        timeline: what was said while it ran, each with its step.
    """

    losses: list[float]
    findings: list[Finding]
    timeline: list[tuple[int | None, Finding]]

    @property
    def steps(self) -> dict[str, int]:
        """For each code the step at which it was first said while the run was going."""
        return {finding.code: step or 0 for step, finding in reversed(self.timeline)}

    @property
    def alarms(self) -> list[Finding]:
        """Warnings and errors, those that were said while it ran and are no longer true at its end among them."""
        every = [*self.findings, *(finding for _, finding in self.timeline)]
        found = {(f.code, f.where): f for f in every if f.severity != "info"}
        return list(found.values())

    @property
    def fell(self) -> str:
        """The loss of the first and of the last twentieth."""
        n = len(self.losses) // 20
        return f"{sum(self.losses[:n]) / n:.3f} → {sum(self.losses[-n:]) / n:.3f}"


def outcome(trial: Trial, data: Data, path: Path, **watch: Any) -> Outcome:
    """Train, and ask for the findings."""
    losses = run(trial, data, path, **watch)
    with eq.Run.open(path) as stored:
        return Outcome(losses, stored.diagnose(), stored.timeline)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, default="chosen")
    parser.add_argument("--only", default="", help="only workloads with this in their name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workload in healthy(arguments.part):
        if arguments.only in workload.name:
            with tempfile.TemporaryDirectory() as folder:
                one = outcome(*trial_of(workload), Path(folder, "run"))
            print(workload.name, one.fell, *(f"{f.severity}: {f.code}" for f in one.findings), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
