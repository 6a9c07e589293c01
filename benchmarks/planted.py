"""Faults, each planted in several healthy workloads, and what a watch with default arguments says of them.

    python benchmarks/planted.py [--part chosen] [--only "gpt adamw"] [--write]

prints, and with --write puts into docs/diagnosis.md, which faults are named, and what healthy runs raise.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from workloads import PARTS, STEPS, Outcome, Trial, Workload, healthy, outcome, trial_of

from equipoise.finding import Finding

MARK, END = "<!-- table: python benchmarks/planted.py --write -->", "<!-- end of table -->"
PAGE = Path(__file__).parents[1] / "docs" / "diagnosis.md"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in training.

    Attributes:
        codes: findings of which at least one must be raised.
        bases: the workloads that it is planted in.
        plant: changes a healthy trial.
        local: whether the finding must name the layer.
    """

    codes: tuple[str, ...]
    bases: tuple[str, ...]
    plant: Callable[[Trial], None]
    local: bool = False


def _nan(trial: Trial) -> None:
    def spoil(step: int) -> None:
        if step == STEPS // 2 and trial.weight.grad is not None:
            trial.weight.grad.view(-1)[0] = math.nan

    trial.spoil = spoil


def _detached(trial: Trial) -> None:
    trial.module.register_forward_hook(lambda module, inputs, output: output.detach())


def _dead(share: float) -> Callable[[Trial], None]:
    """A bias at which no sample gets through the activation."""

    def plant(trial: Trial) -> None:
        kind = trial.workload.family
        layers = {"mlp": "body.1.weight", "resnet": "blocks.0.conv_1.weight", "vit": "layers.1.up.weight"}
        trial.layer = layers[kind]
        bias = trial.layer.replace("conv_1.weight", "norm_1.bias").replace(".weight", ".bias")
        vector = trial.model.get_parameter(bias)
        with torch.no_grad():
            vector[: math.ceil(share * len(vector))] = -100.0

    return plant


def _frozen(trial: Trial) -> None:
    trial.weight.requires_grad_(False)


def _ascent(trial: Trial) -> None:
    trial.sign = -1.0


def _clipped(trial: Trial) -> None:
    trial.clip = 1e-3


def _tiny_lr(trial: Trial) -> None:
    trial.lr = 1e-6


def _eps(trial: Trial) -> None:
    trial.options = {"eps": 1e-2}


def _decay(trial: Trial) -> None:
    trial.weight_decay = 30.0


def _accumulated(trial: Trial) -> None:
    trial.zero_grad = False


def _fast_layer(trial: Trial) -> None:
    trial.own = {"lr": 100 * trial.lr}


def _no_decay(trial: Trial) -> None:
    trial.own = {"weight_decay": 0.0}


def _no_warmup(trial: Trial) -> None:
    trial.lr, trial.weight_decay = 20 * trial.lr, trial.weight_decay / 20
    trial.curve = lambda t: 1.0


def _l2(trial: Trial) -> None:
    trial.rule, trial.weight_decay = "adam", 0.01


FAULTS = {
    "one NaN": Fault(("not-finite",), ("gpt adamw", "resnet sgdm", "mlp lion", "vit muon"), _nan),
    "detached layer": Fault(
        ("layer-frozen",), ("gpt adamw", "resnet sgdm", "vit lion", "gpt muon", "mlp adamw"), _detached, local=True
    ),
    "frozen layer": Fault(("layer-frozen",), ("gpt adamw", "resnet sgdm", "mlp lion"), _frozen, local=True),
    "31 % dead units": Fault(
        ("neurons-dead",),
        ("mlp adamw", "mlp sgdm", "resnet adamw", "resnet sgdm", "vit adamw", "mlp muon"),
        _dead(0.31),
        local=True,
    ),
    "60 % dead units": Fault(
        ("neurons-dead",),
        ("mlp adamw", "mlp sgdm", "resnet adamw", "resnet sgdm", "vit adamw", "mlp muon"),
        _dead(0.6),
        local=True,
    ),
    "gradient ascent": Fault(("loss-rising",), ("gpt adamw", "resnet sgdm", "mlp lion", "vit muon"), _ascent),
    "clipping to 1e-3": Fault(
        ("gradient-clipped",), ("gpt adamw", "resnet sgdm", "mlp sgdm", "vit lion", "finetune adamw"), _clipped
    ),
    "lr 1e-6": Fault(
        ("weights-hardly-move",),
        ("gpt adamw", "resnet adamw", "mlp adamw", "resnet sgdm", "vit lion", "gpt muon"),
        _tiny_lr,
    ),
    "eps 1e-2": Fault(("eps-dominated",), ("gpt adamw", "vit adamw", "resnet adamw", "mlp adamw"), _eps),
    "weight decay 30": Fault(("timescale-short",), ("gpt adamw", "vit adamw", "resnet adamw", "mlp adamw"), _decay),
    "no zero_grad": Fault(
        ("gradients-accumulate",),
        ("gpt adamw", "mlp adamw", "resnet sgdm", "mlp sgdm", "vit lion", "gpt muon"),
        _accumulated,
    ),
    "a layer's lr × 100": Fault(
        ("layers-unbalanced", "layer-exploding"),
        ("gpt adamw", "mlp adamw", "resnet adamw", "resnet sgdm", "vit lion", "gpt muon", "finetune adamw"),
        _fast_layer,
        local=True,
    ),
    "no decay on a layer": Fault(("no-decay",), ("gpt adamw", "resnet sgdm", "vit lion"), _no_decay, local=True),
    "lr × 20, no warmup": Fault(
        ("transient-too-fast", "layer-exploding"), ("gpt adamw", "resnet adamw", "vit lion", "mlp adamw"), _no_warmup
    ),
    "L2 in Adam": Fault(("adam-l2",), ("gpt adamw", "resnet adamw", "mlp adamw"), _l2),
}


HARMLESS = {
    ("a layer's lr × 100", "vit lion, again"),
    ("lr × 20, no warmup", "mlp adamw, again"),
    ("lr × 20, no warmup", "mlp adamw, last"),
}
"""Not named: with a half or three quarters of the usual lr they train about as well as the healthy run, or better."""


def cases(part: str) -> Iterator[tuple[str, Workload]]:
    """Each fault with each workload that it is planted in."""
    for fault, one in FAULTS.items():
        for base in one.bases:
            family, optimizer = base.split()
            yield fault, Workload(family, optimizer, part)


def planted(fault: str, workload: Workload, path: Path) -> tuple[Trial, Outcome]:
    """Train a workload with a fault."""
    trial, data = trial_of(workload)
    FAULTS[fault].plant(trial)
    return trial, outcome(trial, data, path)


def names(finding: Finding, fault: str, trial: Trial) -> bool:
    """Whether a finding names the fault, at the right layer."""
    one = FAULTS[fault]
    return finding.code in one.codes and (not one.local or finding.where == trial.layer)


def _told(findings: list[Finding]) -> str:
    return ", ".join(sorted({f"`{f.code}`{' (info)' if f.severity == 'info' else ''}" for f in findings})) or "nothing"


def table_of_faults(part: str, only: str) -> str:
    """Each planted fault: whether it is named, where, and when that was said."""
    lines = ["| planted | in | named by | at | said at step | loss | besides |", "|---" * 7 + "|"]
    for fault, workload in cases(part):
        if only not in f"{workload.name} {fault}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            trial, one = planted(fault, workload, Path(folder, "run"))
        right = [f for f in one.findings if names(f, fault, trial)]
        rest = [f for f in one.alarms if f.code not in {g.code for g in right}]
        said = "**missed** | |"
        if right:
            said = f"{_told(right[:1])} | {right[0].where} | {one.steps.get(right[0].code, '–')}"
        besides = "" if not rest else _told(rest)
        lines.append(f"| {fault} | {workload.name} | {said} | {one.fell} | {besides} |")
        print(lines[-1], flush=True)
        for f in one.findings:
            print("    ", f.severity, f.code, f.where, f.evidence, sep=" | ", flush=True)
    return "\n".join(lines)


def table_of_healthy(part: str, only: str) -> str:
    """What healthy runs raise."""
    lines = ["| healthy | loss | warnings and errors | good to know |", "|---" * 4 + "|"]
    for workload in healthy(part):
        if only not in f"{workload.name} healthy":
            continue
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(*trial_of(workload), Path(folder, "run"))
        info = [f for f in one.findings if f.severity == "info"]
        good = ", ".join(sorted({f"`{f.code}`" for f in info}))
        lines.append(f"| {workload.name} | {one.fell} | {_told(one.alarms)} | {good} |")
        print(lines[-1], flush=True)
        for f in one.findings:
            print("    ", f.severity, f.code, f.where, f.evidence, sep=" | ", flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/diagnosis.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = []
    for part in arguments.part:
        parts += [f"### Planted faults, {part}", table_of_faults(part, arguments.only)]
        parts += [f"### Healthy runs, {part}", table_of_healthy(part, arguments.only)]
    if arguments.write:
        head, rest = PAGE.read_text().split(MARK + "\n", 1)
        PAGE.write_text(f"{head}{MARK}\n" + "\n\n".join(parts) + f"\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
