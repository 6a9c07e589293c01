"""A compiled model, our optimizers and a watch: one graph without breaks, nothing recompiled as a schedule moves."""

import shutil
import warnings
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.config import cpp as inductor_cpp

import equipoise as eq
from equipoise.lab.models.gpt import Gpt

CXX = inductor_cpp.cxx[-1] or "g++"
STEPS = 8
OPTIMIZERS = {"rotational": eq.RotationalAdamW, "muon": eq.Muon}


def gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt(tokens=16, length=8, depth=1, width=16, heads=2)


def loss_of(model: Any, step: int) -> torch.Tensor:
    x = torch.randint(16, (4, 9), generator=torch.Generator().manual_seed(step)).sort(1).values
    return torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def train(model: Any, net: Gpt, make: Any, path: Path, compiled: bool) -> tuple[Gpt, list[float]]:
    """A few watched steps with an lr that moves at each; after the first one, a compilation of anything is an error."""
    optimizer = make(eq.param_groups(model), lr=0.02, weight_decay=0.1, compile=compiled)
    scheduler = eq.schedules.Scheduler(optimizer, lr=eq.schedules.warmup_cosine(STEPS, warmup=2), relative=True)
    used = []
    with eq.watch(model, optimizer, path, every=1, spectra=2, strict=True) as watch:
        for step in range(STEPS):
            with torch.compiler.set_stance("fail_on_recompile" if step else "default"):
                loss = loss_of(model, step)
                optimizer.zero_grad()
                loss.backward()
                used.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
            scheduler.step()
            watch.log(loss=loss)
    return net, used


@pytest.mark.skipif(shutil.which(CXX) is None, reason=f"needs a C++ compiler: {CXX} is not installed")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager step", "compiled step"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_graph_and_nothing_recompiles(kind: str, compiled: bool, tmp_path: Path) -> None:
    net = gpt()
    right, _ = train(net, net, OPTIMIZERS[kind], tmp_path / "plain", compiled)
    torch.compiler.reset()
    counters.clear()
    net = gpt()
    # Inductor once is enough: breaks and guards are found before a backend is asked.
    model: Any = torch.compile(net, backend="inductor" if (kind, compiled) == ("rotational", True) else "aot_eager")
    got, lrs = train(model, net, OPTIMIZERS[kind], tmp_path / "compiled", compiled)
    assert all(a != b for a, b in pairwise(lrs)), "lr moves at every step"
    assert dict(counters["graph_break"]) == {}
    assert counters["stats"]["unique_graphs"] == 1
    for p, q in zip(got.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    with eq.Run.open(tmp_path / "plain") as plain, eq.Run.open(tmp_path / "compiled") as other:
        assert list(other.tensors) == list(plain.tensors), "without _orig_mod"
        assert [t.role for t in other.tensors.values()] == [t.role for t in plain.tensors.values()]
        assert other.series("norm", "head.weight").steps.tolist() == list(range(1, STEPS + 1))
        assert other.status == "finished"


def test_a_compiled_step_has_no_more_breaks_than_with_torchs_adamw(tmp_path: Path) -> None:
    """zero_grad, backward and the step are calls out of the graph for any optimizer; watching adds none."""
    found = {}
    for make in (torch.optim.AdamW, eq.RotationalAdamW, eq.Muon):
        torch.compiler.reset()
        counters.clear()
        net = gpt()
        optimizer = make(net.parameters(), lr=0.02, weight_decay=0.1)
        scheduler = eq.schedules.Scheduler(optimizer, lr=eq.schedules.cosine(STEPS), relative=True)

        def whole(net: Gpt, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = torch.compile(whole, backend="aot_eager")
        with warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")  # torch's own, about what it leaves out of a graph
            if make is not torch.optim.AdamW:
                stack.enter_context(eq.watch(net, optimizer, tmp_path / make.__name__, every=1, strict=True))
            for t in range(STEPS):
                with torch._dynamo.config.patch(error_on_recompile=t > 1):
                    step(net, optimizer, torch.randint(16, (4, 9), generator=torch.Generator().manual_seed(t)))
                scheduler.step()
        found[make] = sum(counters["graph_break"].values())
    assert max(found.values()) == found[torch.optim.AdamW] > 0


@pytest.mark.parametrize("wrap", ["compile", "both"])
def test_names_are_those_of_the_plain_model(wrap: str) -> None:
    """In groups, patterns, plans and invariance, as in runs."""
    plain = gpt()
    model: Any = torch.compile(torch.nn.DataParallel(plain) if wrap == "both" else plain, backend="eager")
    groups, right = eq.param_groups(model, head="head"), eq.param_groups(plain, head="head")
    assert [g["param_names"] for g in groups] == [g["param_names"] for g in right]
    assert any(g.get("lr") == 1.0 for g in eq.param_groups(model, overrides={"layers.0.*": {"lr": 1.0}}))
    named: dict[str, Any] = {"optimizer": "adamw", "lr": 0.1, "weight_decay": 0.1}
    for given in (named, dict[str, Any](optimizer=torch.optim.AdamW(plain.parameters()))):
        names, same = ([t.name for t in eq.plan(m, steps=10, **given).setting.tensors] for m in (model, plain))
        assert names == same
        assert "tokens.weight" in names
    measured = eq.scale_invariance(model, lambda: loss_of(plain, 0))
    assert set(measured) == {n for n, _ in plain.named_parameters()}
