"""The forward pass of real training: what is stored is right, and training does not change."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.monitor.forward.networks import NETWORKS, Convolutions, Stack, Written
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.lab.models import Gpt
from equipoise.monitor.store.layout import Column


def train(
    model: nn.Module, batch: Callable[[torch.Generator], Tensor], path: Path | None, steps: int = 4,
    called: Any = None, given: Any = None, **options: Any,
) -> list[Tensor]:  # fmt: skip
    """Some steps, watched if there is a path; the weights and buffers at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(5)
    torch.manual_seed(6)
    watch = None
    if path is not None:
        watch = eq.watch(
            model if given is None else given, optimizer, path, quiet=True, **({"every": 1, "strict": True} | options)
        )
    for _ in range(steps):
        loss = (model if called is None else called)(batch(g)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if watch is not None:
        watch.close()
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def made(name: str) -> tuple[nn.Module, Callable[[torch.Generator], Tensor]]:
    torch.manual_seed(7)
    make, batch = NETWORKS[name]
    return make(), batch


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    with_it = train(*made(name), tmp_path / "a", forward=True)
    assert same(with_it, train(*made(name), None))
    with eq.Run.open(tmp_path / "a") as run:
        assert not run.findings
        assert "forward" in run.kinds
        assert any(c.quantity == "output_rms" for c in run.columns)


@pytest.mark.parametrize("name", ["written", "convolutions"])
@pytest.mark.parametrize("whole", [True, False])
def test_compiled_code_is_left_alone(name: str, whole: bool, tmp_path: Path) -> None:
    """The same code is run, compiled as often as without watching, and buffers and random numbers are as they were."""
    from torch._dynamo.testing import CompileCounterWithBackend

    results, frames = [], []
    for path in (tmp_path / "a", None):
        torch._dynamo.reset()
        model, batch = made(name)
        counter = CompileCounterWithBackend("aot_eager")
        called: Any = model
        if whole:
            called = torch.compile(model, backend=counter, fullgraph=True)
        else:
            next(model.children()).compile(backend=counter)
        given = called if path is not None else None
        results.append(train(model, batch, path, called=called, given=given, forward=True))
        frames.append(counter.frame_count)
    assert same(*results)
    assert frames[0] == frames[1]
    with eq.Run.open(tmp_path / "a") as run:
        assert len(run.series("output_rms", "layers.0" if name == "written" else "first")) == 4


def test_a_model_that_is_compiled_elsewhere_is_not_seen_and_not_changed(tmp_path: Path) -> None:
    results = []
    for path in (tmp_path / "a", None):
        torch._dynamo.reset()
        model, batch = made("written")
        called = torch.compile(model, backend="aot_eager", fullgraph=True)
        results.append(train(model, batch, path, called=called, forward=True))
    assert same(*results)
    with eq.Run.open(tmp_path / "a") as run:
        assert "forward" not in run.kinds
        assert [f.code for f in run.findings] == ["forward-not-seen"]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_ddp_is_seen_through(tmp_path: Path) -> None:
    results = []
    with alone(tmp_path / "store"):
        for path in (tmp_path / "a", None):
            model, batch = made("convolutions")
            wrapped = nn.parallel.DistributedDataParallel(model)
            results.append(train(model, batch, path, called=wrapped, given=wrapped, forward=True))
    assert same(*results)
    with eq.Run.open(tmp_path / "a") as run:
        assert len(run.series("units_dead", "first.weight")) == 4


def test_numbers_are_those_of_the_pass(tmp_path: Path) -> None:
    torch.manual_seed(8)
    model = Gpt(11, 8, 2, 16, 2).double()
    x = torch.randint(11, (4, 8))
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> None:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            kept.update({name: output.detach(), f"{name} in": given[0].detach()})

        model.get_submodule(name).register_forward_hook(hook)

    for name in ("layers.0", "layers.1", "layers.1.attention.q", "layers.1.attention.kv", "layers.0.up"):
        keep(name)
    train(model, lambda g: x, tmp_path / "a", steps=1, forward=True)
    y = kept["layers.1"]
    q = kept["layers.1.attention.q"].view(4, 8, 2, 8).transpose(1, 2)
    k = kept["layers.1.attention.kv"].view(4, 8, 2, 2, 8)[:, :, 0].transpose(1, 2)
    logits = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    with eq.Run.open(tmp_path / "a") as run:

        def value(quantity: str, place: str, head: int | None = None) -> float:
            return float(run.series(quantity, place, neuron=head).values[0])

        assert value("output_rms", "layers.1") == pytest.approx(y.square().mean().sqrt().item(), rel=1e-6)
        assert value("output_max", "layers.1") == pytest.approx(y.abs().max().item(), rel=1e-6)
        written = (y - kept["layers.1 in"]).square().mean().sqrt().item()
        assert value("written_rms", "layers.1") == pytest.approx(written, rel=1e-6)
        for head in range(2):
            assert value("attention_logit", "layers.1.attention", head) == pytest.approx(
                logits[:, head].max().item(), rel=1e-6
            )
        assert value("attention_logit", "layers.1.attention") == pytest.approx(logits.max().item(), rel=1e-6)
        up = functional.gelu(kept["layers.0.up"])
        dead = (up.abs().amax((0, 1)) <= 1e-3 * up.square().mean().sqrt()).double().mean().item()
        assert value("units_dead", "layers.0.up.weight") == pytest.approx(dead)
        assert run.quantities["output_rms"].description


def test_the_three_ways_of_attention_agree(tmp_path: Path) -> None:
    """`nn.MultiheadAttention`, `scaled_dot_product_attention` and a written softmax with the same weights."""
    torch.manual_seed(9)
    heads, width = 2, 8
    mha = nn.MultiheadAttention(width, heads, batch_first=True)

    class Way(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.how, self.mha = how, copy.deepcopy(mha)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.zeros(len(x), x.shape[1], dtype=torch.bool)
            hidden[:, -2:] = True
            if self.how.startswith("mha"):
                return self.mha(x, x, x, key_padding_mask=hidden, need_weights=self.how == "mha with weights")[0]
            q, k, v = functional.linear(x, self.mha.in_proj_weight, self.mha.in_proj_bias).chunk(3, -1)
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
            if self.how == "function":
                y = functional.scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None, None])
            else:
                logits = (q @ k.transpose(-2, -1) / 2.0).masked_fill(hidden[:, None, None], -torch.inf)
                y = (logits.softmax(-1) if self.how == "written" else torch.softmax(input=logits, dim=-1)) @ v
            return self.mha.out_proj(y.transpose(1, 2).flatten(2))

    found = []
    for how in ("mha", "mha with weights", "function", "written", "by name"):
        train(Way(how), lambda g: torch.randn(3, 6, width, generator=g), tmp_path / how, steps=1, forward=True)
        with eq.Run.open(tmp_path / how) as run:
            place = next(c.tensor for c in run.columns if c.quantity == "attention_logit")
            parts = [
                run.series(q, place, neuron=h).values for q in ("attention_logit", "attention_entropy") for h in (0, 1)
            ]
            found.append(torch.tensor([list(map(float, p)) for p in parts]))
    for other in found[1:]:
        assert torch.allclose(found[0], other, rtol=1e-4)


def test_routers_are_counted(tmp_path: Path) -> None:
    model, batch = made("experts")
    train(model, batch, tmp_path / "a", steps=2, forward=True)
    with eq.Run.open(tmp_path / "a") as run:
        loads = [run.series("expert_load", "layers.1", neuron=i).values for i in range(4)]
        assert sum(float(x[0]) for x in loads) == pytest.approx(4.0)
        assert run.series("expert_load", "layers.1").values[0] == max(x[0] for x in loads)


def test_saturated_and_dead_units_of_convolutions_are_channels(tmp_path: Path) -> None:
    torch.manual_seed(10)
    model = Convolutions()
    with torch.no_grad():
        model.norm.bias[:2] = -100.0  # 2 of 6 channels
        model.get_parameter("second.bias")[:4] = 100.0  # 4 of 8 after tanh
    train(model, lambda g: torch.randn(4, 1, 9, 9, generator=g), tmp_path / "a", steps=1, forward=True)
    with eq.Run.open(tmp_path / "a") as run:
        assert float(run.series("units_dead", "first.weight").values[0]) == pytest.approx(2 / 6)
        assert float(run.series("units_saturated", "second.weight").values[0]) == pytest.approx(4 / 8)


def test_only_the_first_training_pass_of_measured_steps_is_looked_at(tmp_path: Path) -> None:
    model, batch = made("gpt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(5)
    hooked: list[int] = []
    layer = model.get_submodule("layers.0")
    with eq.watch(model, optimizer, tmp_path / "a", every=5, forward=True, strict=True, quiet=True):
        for _ in range(11):
            with torch.no_grad():
                model(batch(g))
            model.eval()
            model(batch(g))
            model.train()
            for _ in range(2):  # two parts of a batch
                out = model(batch(g))
                out.square().mean().backward()
            hooked.append(len(layer._forward_hooks))
            optimizer.step()
            optimizer.zero_grad()
    assert not any(hooked)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    with eq.Run.open(tmp_path / "a") as run:
        assert run.series("output_rms", "layers.0").steps.tolist() == [1, 5, 10]
        assert run.coverage.taken == 11


def test_an_error_in_the_model_is_the_models_own(tmp_path: Path) -> None:
    model, batch = made("written")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(5)
    broken = True

    def hook(module: nn.Module, args: Any) -> None:
        if broken:
            raise KeyError("mine")

    model.get_submodule("layers.1.mlp").register_forward_pre_hook(hook)
    with eq.watch(model, optimizer, tmp_path / "a", every=1, forward=True, quiet=True):
        with pytest.raises(KeyError, match="mine"):
            model(batch(g))
        assert not torch.overrides._get_current_function_mode_stack()
        broken = False
        for _ in range(2):
            model(batch(g)).square().mean().backward()
            optimizer.step()
    with eq.Run.open(tmp_path / "a") as run:
        assert run.series("output_rms", "layers.1").steps.tolist() == [2]
        assert not [f for f in run.findings if f.code == "watch-failed"]


def test_a_failure_of_watching_ends_watching_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("equipoise.monitor.forward.formulas.dead_share", broken)
    model, batch = made("gpt")
    with_it = train(model, batch, tmp_path / "a", forward=True, strict=False)
    assert same(with_it, train(*made("gpt"), None))
    with eq.Run.open(tmp_path / "a") as run:
        assert "watch-failed" in [f.code for f in run.findings]
        assert len(run.series("rotation", "layers.0.up.weight")) == 4


def test_a_hooked_model_can_be_copied_and_pickled(tmp_path: Path) -> None:
    model, batch = made("written")
    optimizer = torch.optim.AdamW(model.parameters())
    with eq.watch(model, optimizer, tmp_path / "a", every=1, forward=True, quiet=True):
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        x = batch(torch.Generator().manual_seed(1))
        for other in others:
            other(x).sum().backward()
        optimizer.step()
    with eq.Run.open(tmp_path / "a") as run:
        assert Column("output_rms", "layers.0") not in run.columns


def test_what_is_not_finite_is_stored_as_infinite(tmp_path: Path) -> None:
    model, batch = made("gpt")
    with torch.no_grad():
        model.get_parameter("layers.0.down.weight")[0, 0] = torch.nan
    train(model, batch, tmp_path / "a", steps=1, forward=True)
    with eq.Run.open(tmp_path / "a") as run:
        assert run.series("output_rms", "layers.0").values.tolist() == [float("inf")]


def test_autocast_changes_nothing(tmp_path: Path) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Stack(Written)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inside(x)

    results = []
    for path in (tmp_path / "a", None):
        torch.manual_seed(3)
        results.append(train(Cast(), NETWORKS["written"][1], path, forward=True))
    assert same(*results)


def test_sinks_get_the_extremes(tmp_path: Path) -> None:
    class Kept:
        def __init__(self) -> None:
            self.numbers: dict[int, dict[str, float]] = {}

        def send(self, step: int, numbers: dict[str, float]) -> None:
            self.numbers.setdefault(step, {}).update(numbers)

        def finding(self, step: int, finding: Any) -> None:
            pass

        def close(self, status: str) -> None:
            pass

    kept = Kept()
    model, batch = made("gpt")
    train(model, batch, tmp_path / "a", steps=3, forward=True, sinks=[kept])
    with eq.Run.open(tmp_path / "a") as run:
        largest = max(float(run.series("output_max", f"layers.{i}").values[0]) for i in range(2))
    assert kept.numbers[1]["equipoise/forward/output_max"] == pytest.approx(largest)
    assert "equipoise/rotation/median" in kept.numbers[1]
