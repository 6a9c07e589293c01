"""Optimizers of other packages, run as they are: what plan and watch say of them against what they do.

Each part runs where its package is installed. On a CPU all of them do but dion's, which is not on PyPI, and whose step
is written out here by its source.
"""

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.monitor.measure.walked import RATES, SIGNS, Walker, bare, hold, states_of, watched

import equipoise as eq

MODEL = ("matrix", "conv", "embedding", "gain")
FLAT: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.005}
FLAT_SIGNS: dict[str, Any] = {"lr": 0.002, "weight_decay": 0.005}
"""Decay by the schedule alone, or by nothing but itself: the same share a step as RATES'."""
L2: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.01}
SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

KNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lion-pytorch": ("lion_pytorch", "Lion", SIGNS),
    "lion-pytorch foreach": ("lion_pytorch.foreach", "Lion", SIGNS),
    "lion-pytorch decoupled": ("lion_pytorch", "Lion", FLAT_SIGNS | {"decoupled_weight_decay": True}),
    "lion-pytorch cautious decay": (
        "lion_pytorch.cautious_lion", "Lion", SIGNS | {"cautious_factor": 1.0, "cautious_wd": True}
    ),
    "bitsandbytes AdamW": ("bitsandbytes.optim", "AdamW", RATES),
    "bitsandbytes AdamW8bit": ("bitsandbytes.optim", "AdamW8bit", RATES),
    "bitsandbytes PagedAdamW32bit": ("bitsandbytes.optim", "PagedAdamW32bit", RATES),
    "bitsandbytes Adam": ("bitsandbytes.optim", "Adam", RATES),
    "bitsandbytes Lion": ("bitsandbytes.optim", "Lion", SIGNS),
    "bitsandbytes Lion8bit": ("bitsandbytes.optim", "Lion8bit", SIGNS),
    "bitsandbytes SGD": ("bitsandbytes.optim", "SGD", SGD),
    "bitsandbytes RMSprop": ("bitsandbytes.optim", "RMSprop", L2),
    "torchao AdamW8bit": ("torchao.optim", "AdamW8bit", RATES),
    "torchao AdamWFp8": ("torchao.optim", "AdamWFp8", RATES),
    "torchao Adam8bit": ("torchao.optim", "Adam8bit", L2),
    "optimi AdamW": ("optimi", "AdamW", RATES),
    "optimi AdamW, decay apart from lr": ("optimi", "AdamW", FLAT | {"decouple_lr": True}),
    "optimi Adam": ("optimi", "Adam", L2),
    "optimi Lion": ("optimi", "Lion", SIGNS),
    "optimi SGD": ("optimi", "SGD", SGD),
    "optimi SGD, decoupled": ("optimi", "SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "decouple_wd": True}),
    "pytorch_optimizer AdamW": ("pytorch_optimizer", "AdamW", RATES),
    "pytorch_optimizer Lion": ("pytorch_optimizer", "Lion", SIGNS),
    "pytorch_optimizer Lion, fixed decay": ("pytorch_optimizer", "Lion", FLAT_SIGNS | {"fixed_decay": True}),
    "pytorch_optimizer SignSGD": ("pytorch_optimizer", "SignSGD", SIGNS),
}  # fmt: skip

UNKNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "schedulefree AdamW": ("schedulefree", "AdamWScheduleFree", RATES),
    "schedulefree SGD": ("schedulefree", "SGDScheduleFree", SGD),
    "schedulefree RAdam": ("schedulefree", "RAdamScheduleFree", RATES),
    "lion-pytorch cautious": ("lion_pytorch.cautious_lion", "Lion", SIGNS),
    "pytorch_optimizer Lion, L2": ("pytorch_optimizer", "Lion", FLAT_SIGNS | {"weight_decouple": False}),
    "pytorch_optimizer PNM": ("pytorch_optimizer", "PNM", {"lr": 0.01}),
    "pytorch_optimizer DAdaptLion": ("pytorch_optimizer", "DAdaptLion", {}),
    "pytorch_optimizer Magma": ("pytorch_optimizer", "Magma", RATES),
    "prodigyopt": ("prodigyopt", "Prodigy", {}),
    "torch NAdam": ("torch.optim", "NAdam", {"lr": 0.01}),
    "torch RAdam": ("torch.optim", "RAdam", {"lr": 0.01}),
    "torch Adamax": ("torch.optim", "Adamax", {"lr": 0.01}),
    "torch Adagrad": ("torch.optim", "Adagrad", {"lr": 0.01}),
    "torch Adadelta": ("torch.optim", "Adadelta", {"lr": 1.0}),
    "torch Adafactor": ("torch.optim", "Adafactor", RATES),
    "torch ASGD": ("torch.optim", "ASGD", {"lr": 0.1}),
    "torch Rprop": ("torch.optim", "Rprop", {"lr": 1e-3}),
}  # fmt: skip


def made(module: str, name: str, options: dict[str, Any], model: Walker) -> Any:
    optimizer = getattr(pytest.importorskip(module, exc_type=ImportError), name)(bare(model), **options)
    if hasattr(optimizer, "train"):
        optimizer.train()  # schedulefree's
    return optimizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", KNOWN)
def test_what_theory_knows_it_says_right(key: str, tmp_path: Path) -> None:
    """Update, kept share, norm and rotation after 300 steps, within 3 %."""
    module, name, options = KNOWN[key]
    model = Walker(("matrix", "gain") if "torchao" in key else MODEL)
    optimizer = made(module, name, options, model)
    assert all(state.dynamics.known and not state.notes for state in states_of(model, optimizer).values())
    hold(model, optimizer, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", UNKNOWN)
def test_what_theory_does_not_know_it_says_so(key: str, tmp_path: Path) -> None:
    """Plan, watch, comparison and diagnosis say so; it is measured all the same, and nothing else is found."""
    module, name, options = UNKNOWN[key]
    model = Walker(("matrix", "gain"))
    optimizer = made(module, name, options, model)
    for state in states_of(model, optimizer).values():
        assert not state.dynamics.known
        assert any("not known to the theory" in note for note in state.notes)
    said = str(eq.plan(model, optimizer, steps=100, finetune=False))
    assert "not known to the theory" in " ".join(said.split())
    _, findings = watched(model, optimizer, tmp_path)
    assert [f for f in findings if f.severity != "info"] == []
    (unknown,) = (f for f in findings if f.code == "optimizer-unknown")
    assert "not known to the theory" in unknown.evidence
    with eq.Run.open(tmp_path) as run:
        assert len(run.series("rotation", "matrix").values) > 30
        assert len(run.series("c_err", "matrix").values) == 0
        assert not run.compare("matrix").known
        assert "does not know" in repr(run.compare("matrix"))
        assert "optimizer-unknown" in {f.code for f in run.diagnose()}


@pytest.mark.filterwarnings("ignore")
def test_muon_as_published(tmp_path: Path) -> None:
    """A stack is one matrix each. The package on PyPI cannot step a convolution."""
    try:
        file = distribution("muon-optimizer").locate_file("muon.py")
    except PackageNotFoundError:
        pytest.skip("muon-optimizer is not installed")
    spec = spec_from_file_location("published_muon", str(file))  # its name is that of other modules, too
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    spec.loader.exec_module(package)
    model = Walker(("matrix", "experts", "embedding", "gain"))
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "use_muon": True, **RATES},
        {"params": rest, "use_muon": False, **RATES},
    ]
    hold(model, package.SingleDeviceMuonWithAuxAdam(groups), tmp_path)


class Muon(torch.optim.Optimizer):
    """The step of dion's Muon on one device: mu, adjust_lr and flatten in its groups, its five quintics."""

    QUINTICS = (
        (4.0848, -6.8946, 2.927), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    )  # fmt: skip

    def __init__(self, params: Any, *, adjust_lr: str | None = "spectral_norm", flatten: bool = False, **options: Any):
        more = {"mu": 0.95, "beta1": 0.9, "beta2": 0.95, "algorithm": "muon", "epsilon": 1e-8, "nesterov": False}
        super().__init__(params, more | {"adjust_lr": adjust_lr, "flatten": flatten} | options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.mul_(group["mu"]).add_(p.grad)
                x = m.flatten(1) if group["flatten"] else m
                rows, columns = x.shape[-2:]
                tall = rows > columns
                x = x.mT if tall else x
                x = x / x.norm(dim=(-2, -1), keepdim=True)
                for a, b, c in self.QUINTICS:
                    s = x @ x.mT
                    x = a * x + (b * s + c * s @ s) @ x
                x = (x.mT if tall else x).reshape(p.shape)
                scale = {"spectral_norm": (rows / columns) ** 0.5, "rms_norm": 0.2 * max(rows, columns) ** 0.5}
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(x * (group["lr"] * scale.get(group["adjust_lr"], 1.0)))


@pytest.mark.parametrize("adjust", ["spectral_norm", "rms_norm", None])
@pytest.mark.parametrize("flatten", [False, True])
def test_dions_muon(adjust: str | None, flatten: bool, tmp_path: Path) -> None:
    model = Walker(("matrix", "experts", "embedding", *(("conv",) if flatten else ())))
    hold(model, Muon(bare(model), adjust_lr=adjust, flatten=flatten, **RATES), tmp_path)
