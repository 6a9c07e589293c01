"""Faults of the forward pass, each planted in several workloads, and what `eq.watch(forward=True)` says of them.

    python benchmarks/planted_forward.py [--part chosen] [--only "gpt adamw"] [--keep DIRECTORY] [--write]

prints, and with --write puts into docs/diagnosis.md, which faults are named, and what healthy runs raise.
Thresholds were chosen on the part "chosen"; "last" was run once after that.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from planted import END, PAGE
from torch import Tensor, nn
from workloads import PARTS, Trial, Workload, run, trial_of

import equipoise as eq
from equipoise.finding import Finding
from equipoise.lab.data import Data
from equipoise.lab.models.transformer import Attention, positions, start

MARK = "<!-- table: python benchmarks/planted_forward.py --write -->"
CODES = ("activations-growing", "attention-logits-growing", "experts-unbalanced", "units-dead")
EXPERTS, RATE = 4, 0.02


class Experts(nn.Module):
    """A router that sends each token to one of several experts; a bias for each keeps them busy, as in DeepSeek-V3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width, bias=False), nn.GELU(), nn.Linear(2 * width, width, bias=False))
            for _ in range(EXPERTS)
        )
        self.bias = nn.Buffer(torch.zeros(EXPERTS))
        self.rate = RATE

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        scores = self.router(x).softmax(-1)
        chosen = (scores + self.bias).topk(1).indices
        counts = (chosen.reshape(-1, 1) == torch.arange(EXPERTS)).float().mean(0)
        self.bias += self.rate * torch.sign(1 / EXPERTS - counts)
        parts = [expert(x) * (scores[..., i : i + 1] * (chosen == i)) for i, expert in enumerate(self.experts)]
        return torch.stack(parts).sum(0)


class MixedLayer(nn.Module):
    """Attention, and experts in place of the MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention, self.moe = Attention(width, 2, causal=True), Experts(width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = x + self.attention(self.norm_1(x))
        return x + self.moe(self.norm_2(x))


class Mixed(nn.Module):
    """A GPT with experts."""

    def __init__(self, length: int, depth: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(MixedLayer(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, 256, bias=False)
        start(self, depth)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.tokens(x) + positions(self.positions, x.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def trial_for(workload: Workload) -> tuple[Trial, Data]:
    """A healthy trial; of the family "mixed", which is a GPT with experts."""
    if workload.family != "mixed":
        return trial_of(workload)
    trial, data = trial_of(Workload("gpt", workload.optimizer, workload.part))
    part = PARTS[workload.part]
    torch.manual_seed(trial.workload.seed)
    trial.model = Mixed(32, part.depth, part.width)
    trial.layer = "layers.1.moe.router.weight"
    return trial, data


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in the forward pass.

    Attributes:
        code: of the finding that must name it.
        bases: the workloads that it is planted in.
        plant: changes a healthy trial, and says which module must be named.
    """

    code: str
    bases: tuple[str, ...]
    plant: Callable[[Trial], str]


def _sharp(trial: Trial) -> str:
    """Queries learn so fast that attention goes to one key."""
    trial.layer = "layers.0.attention.q.weight"
    trial.own = {"lr": 30 * trial.lr, "weight_decay": 0.0}
    return "layers.0.attention"


def _scaled(trial: Trial) -> str:
    """Queries are multiplied by a number that grows."""
    _growing(trial.model.get_submodule("layers.0.attention.q"))
    return "layers.0.attention"


def _growing(module: nn.Module) -> None:
    """The output is multiplied by a number that doubles every 50 steps."""
    seen = [0]

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        seen[0] += 1
        return output * 2.0 ** (seen[0] / 50)

    module.register_forward_hook(hook)


def _loud(trial: Trial) -> str:
    """A layer that writes to the residual stream learns 30 times as fast, without decay."""
    trial.layer = "layers.0.down.weight"
    trial.own = {"lr": 30 * trial.lr, "weight_decay": 0.0}
    return "layers.0"


def _amplified(trial: Trial) -> str:
    """What a block writes is multiplied by a number that grows."""
    _growing(trial.model.get_submodule("layers.0.down"))
    return "layers.0"


def _dead(share: float) -> Callable[[Trial], str]:
    def plant(trial: Trial) -> str:
        kind = trial.workload.family
        weight = {"mlp": "body.1.weight", "resnet": "blocks.0.conv_1.weight", "vit": "layers.1.up.weight"}[kind]
        bias = weight.replace("conv_1.weight", "norm_1.bias").replace(".weight", ".bias")
        vector = trial.model.get_parameter(bias)
        with torch.no_grad():
            vector[: math.ceil(share * len(vector))] = -100.0
        return weight

    return plant


def _collapsed(trial: Trial) -> str:
    """One expert is preferred by far, and nothing keeps the others busy."""
    moe = trial.model.get_submodule("layers.1.moe")
    moe.rate = 0.0  # type: ignore[assignment]
    moe.get_buffer("bias")[0] = 1.0
    return "layers.1.moe"


def _starved(trial: Trial) -> str:
    """One expert gets nothing."""
    moe = trial.model.get_submodule("layers.0.moe")
    moe.rate = 0.0  # type: ignore[assignment]
    moe.get_buffer("bias")[1] = -1.0
    return "layers.0.moe"


FAULTS = {
    "queries × 2 every 50 steps": Fault("attention-logits-growing", ("vit adamw",), _scaled),
    "lr of queries × 30": Fault("attention-logits-growing", ("gpt adamw",), _sharp),
    "a block × 2 every 50 steps": Fault("activations-growing", ("gpt muon",), _amplified),
    "lr of a block's last layer × 30": Fault("activations-growing", ("vit adamw",), _loud),
    "31 % dead units": Fault("units-dead", ("resnet adamw", "vit adamw"), _dead(0.31)),
    "60 % dead units": Fault("units-dead", ("mlp adamw",), _dead(0.6)),
    "one expert gets all": Fault("experts-unbalanced", ("mixed adamw",), _collapsed),
    "one expert gets nothing": Fault("experts-unbalanced", ("mixed muon",), _starved),
}
HEALTHY = ("gpt adamw", "gpt lion", "gpt muon", "vit adamw", "vit lion", "mixed adamw", "mixed muon", "mlp adamw",
           "resnet adamw")  # fmt: skip


def cases(part: str) -> Iterator[tuple[str, Workload]]:
    """Healthy workloads, whose fault is "", and each fault with each workload that it is planted in."""
    bases = [("", base) for base in HEALTHY] + [(name, base) for name, one in FAULTS.items() for base in one.bases]
    for fault, base in bases:
        family, optimizer = base.split()
        yield fault, Workload(family, optimizer, part)


def _said(findings: list[Finding]) -> str:
    return ", ".join(sorted({f"`{f.code}`" for f in findings})) or "nothing"


def _judged(fault: str, workload: Workload, path: Path) -> tuple[str, list[Finding], str]:
    """The place of a fault, what is found, and how the loss fell; trained unless the run is there."""
    trial, data = trial_for(workload)
    place = FAULTS[fault].plant(trial) if fault else ""
    if not path.exists():
        run(trial, data, path, forward=True)
    with eq.Run.open(path) as made:
        losses = made.series("loss").values
        few = len(losses) // 20
        fell = f"{losses[:few].mean():.3f} → {losses[-few:].mean():.3f}"
        return place, [f for f in made.diagnose() if f.code in CODES], fell


def tables(part: str, only: str, keep: Path | None) -> str:
    """Each fault: whether it is named and where; and what healthy runs raise."""
    faults = ["| planted | in | named by | at | loss | besides, of the forward pass |", "|---" * 6 + "|"]
    fine = ["| healthy | loss | of the forward pass |", "|---" * 3 + "|"]
    for fault, workload in cases(part):
        name = f"{workload.name} {fault or 'healthy'}"
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            place, found, fell = _judged(fault, workload, Path(folder, "run") if keep is None else keep / part / name)
        if fault:
            right = [f for f in found if f.code == FAULTS[fault].code and f.where == place]
            rest = [f for f in found if f not in right]
            said = f"{_said(right)} | {place}" if right else "**missed** |"
            faults.append(f"| {fault} | {workload.name} | {said} | {fell} | {_said(rest) if rest else ''} |")
        else:
            fine.append(f"| {workload.name} | {fell} | {_said(found)} |")
        print(faults[-1] if fault else fine[-1], flush=True)
        for f in found:
            print("    ", f.severity, f.code, f.where, f.evidence, sep=" | ", flush=True)
    head = f"### Faults of the forward pass, {part}"
    return "\n".join([head, "", *faults, "", f"### Healthy runs, forward pass, {part}", "", *fine])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=["chosen", "last"])
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--keep", type=Path, help="keep the runs here, and take those that are there")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/diagnosis.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = [tables(part, arguments.only, arguments.keep) for part in arguments.part]
    if arguments.write:
        head, rest = PAGE.read_text().split(MARK + "\n", 1)
        PAGE.write_text(f"{head}{MARK}\n" + "\n\n".join(made) + f"\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
