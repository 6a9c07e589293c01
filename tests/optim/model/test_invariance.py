"""Scale invariance is found where it is, and nowhere else; the measurement leaves no trace."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.optim.model import example_models
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.optim import Invariance, standardize

DTYPES = [torch.float64, torch.float32]


def measured(name: str, dtype: torch.dtype = torch.float64) -> Invariance:
    model, run = example_models.make(name, dtype=dtype)
    return eq.scale_invariance(model, example_models.loss_of(run))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "granularity"), [("batch", "neuron"), ("layer", "tensor"), ("group", 4)])
def test_what_is_before_a_norm_is_found_at_its_granularity(name: str, granularity: str | int, dtype: Any) -> None:
    found = measured(f"resnet-{name}", dtype)
    convs = [n for n, t in found.items() if len(t.shape) == 4]
    assert len(convs) == 7
    assert found.invariant == dict.fromkeys(convs, granularity)
    for t in found.values():
        assert not t.with_bias
        assert not t.dead.any()
        expected = granularity == "neuron" and t.name in convs
        assert bool(t.neurons.all()) is expected
        assert bool(t.neurons.any()) is expected
        assert t.share == (1.0 if expected else 0.0)
        assert t.residual < 1e-4 if t.name in convs else t.residual > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mlp", "vgg", "vit", "gpt", "gpt2", "bert"])
def test_nothing_is_found_without_a_norm_right_after(name: str, dtype: Any) -> None:
    found = measured(name, dtype)
    assert found.invariant == {}
    assert not any(t.neurons.any() for t in found.values())


def net(*layers: nn.Module, inputs: int = 6) -> tuple[nn.Sequential, Callable[[], Tensor]]:
    torch.manual_seed(0)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    model = nn.Sequential(*layers).double()
    x = torch.randn(64, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return model, lambda: functional.cross_entropy(model(x), torch.arange(64) % 3)


def test_found_means_that_scaling_changes_nothing_and_not_found_that_it_does() -> None:
    model, closure = net(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    found = eq.scale_invariance(model, closure)
    assert found.invariant == {"0.weight": 2}
    assert found["0.weight"].with_bias
    base = closure().item()

    def changed(rows: slice, bias: bool) -> float:
        twin = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            model[0].weight[rows] *= 3  # type: ignore[index,operator]
            if bias:
                model[0].bias[rows] *= 3  # type: ignore[index,operator]
            value = closure().item()
        model.load_state_dict(twin)
        return abs(value - base)

    assert changed(slice(0, 4), True) < 1e-4
    assert changed(slice(4, 8), True) < 1e-4
    assert changed(slice(0, 4), False) > 1e-3
    assert changed(slice(0, 2), True) > 1e-3
    assert changed(slice(2, 6), True) > 1e-3


def test_a_bias_before_a_layer_norm_belongs_to_the_scale_and_before_a_batch_norm_is_dead() -> None:
    model, closure = net(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    found = eq.scale_invariance(model, closure)
    assert found.invariant == {"0.weight": "tensor"}
    assert found["0.weight"].with_bias
    assert "as a whole, with its bias" in str(found)
    model, closure = net(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    found = eq.scale_invariance(model, closure)
    assert found.invariant == {"0.weight": "neuron"}
    assert not found["0.weight"].with_bias
    assert bool(found["0.bias"].dead.all())
    assert not found["1.bias"].dead.any()


def test_a_part_of_the_neurons() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.norm(x[:, :3]), x[:, 3:]], 1)

    model, closure = net(nn.Linear(6, 8), Half(), nn.ReLU(), nn.Linear(8, 3))
    found = eq.scale_invariance(model, closure)["0.weight"]
    assert found.granularity is None
    assert found.neurons.tolist() == [True] * 3 + [False] * 5
    assert found.share == 3 / 8


def test_dead_neurons_are_not_called_invariant() -> None:
    model, closure = net(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias[2:4] = -100.0  # type: ignore[index,operator]
    found = eq.scale_invariance(model, closure)
    assert found["0.weight"].dead.tolist() == [False, False, True, True, False, False, False, False]
    assert not found["0.weight"].neurons.any()
    assert found.invariant == {}


def test_dead_neurons_do_not_hide_living_invariant_ones() -> None:
    model, closure = net(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[1].bias[5] = -100.0  # type: ignore[index,operator]
    found = eq.scale_invariance(model, closure)["0.weight"]
    assert found.dead.nonzero().flatten().tolist() == [5]
    assert (found.granularity, found.share) == ("neuron", 1.0)


def test_what_the_loss_does_not_use_is_dead() -> None:
    model = nn.ModuleDict({"used": nn.Embedding(6, 4), "unused": nn.Linear(4, 4)}).double()
    x = torch.tensor([0, 1, 3, 3])
    found = eq.scale_invariance(model, lambda: model["used"](x).sin().sum())
    assert found["used.weight"].dead.tolist() == [False, False, True, False, True, True]
    assert bool(found["unused.weight"].dead.all())
    assert found.invariant == {}


def test_modes_and_zero_gains() -> None:
    """BatchNorm in evaluation makes nothing invariant; a gain that starts at zero hides nothing."""
    model, closure = net(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    assert eq.scale_invariance(model, closure).invariant == {"0.weight": "neuron"}
    model.eval()
    assert eq.scale_invariance(model, closure).invariant == {}


def test_a_homogeneous_net_under_a_loss_that_ignores_size_is_invariant_as_a_whole() -> None:
    """ReLU nets without biases scale their output; only a loss of the direction alone makes that invisible."""
    model, _ = net(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    x = torch.randn(64, 6, dtype=torch.float64)
    direction = eq.scale_invariance(model, lambda: functional.normalize(model(x), dim=1)[:, 0].mean())
    assert direction.invariant == {"0.weight": "tensor", "2.weight": "tensor"}
    assert eq.scale_invariance(model, lambda: model(x).square().mean()).invariant == {}


def test_parametrised_weights_and_transposed_convolutions() -> None:
    model, closure = net(standardize(nn.Linear(6, 8).double()), nn.ReLU(), nn.Linear(8, 3))
    assert eq.scale_invariance(model, closure).invariant == {"0.parametrizations.weight.original": "neuron"}
    torch.manual_seed(0)
    up = nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6), nn.Tanh()).double()
    x = torch.randn(8, 4, 5, dtype=torch.float64)
    assert eq.scale_invariance(up, lambda: up(x)[:, :2].mean()).invariant == {"0.weight": "tensor"}


def test_dropout_is_no_obstacle() -> None:
    model, closure = net(nn.Linear(6, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    assert eq.scale_invariance(model, closure).invariant == {"0.weight": "neuron"}


def test_a_closure_may_run_backward_itself_as_optimizers_closures_do() -> None:
    model, closure = net(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters())

    def whole() -> Tensor:
        optimizer.zero_grad()
        loss = closure()
        loss.backward()
        return loss

    assert eq.scale_invariance(model, whole).invariant == {"0.weight": "neuron"}


class Clumsy(nn.Module):
    """Changes modes and buffers, replaces a buffer, and draws random numbers everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count: Tensor = self.count + 1
        self.drawn = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        out = self.norm(x)
        self.eval()
        return out


def snapshot(model: nn.Module) -> list[Any]:
    states = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # type: ignore[index,union-attr]  # noqa: NPY002
    tensors = [p.detach().numpy().tobytes() for p in (*model.parameters(), *model.buffers())]
    grads = [None if p.grad is None else (id(p.grad), p.grad.numpy().tobytes()) for p in model.parameters()]
    ids = [id(t) for t in (*model.parameters(), *model.buffers())]
    return [
        states,
        tensors,
        grads,
        ids,
        [m.training for m in model.modules()],
        [vars(m).get("eps") for m in model.modules()],
    ]


@pytest.mark.parametrize("fail_at", [0, 1, 3, None])
def test_everything_is_put_back_bit_by_bit_also_after_an_error(fail_at: int | None) -> None:
    model, closure = net(nn.Linear(6, 8), Clumsy(), nn.ReLU(), nn.Linear(8, 3))
    closure().backward()
    list(model.parameters())[1].grad = None
    model.train()
    model[3].eval()
    with torch.no_grad():
        model[0].weight[0, 0] = -0.0  # type: ignore[index,operator]
    before, calls = snapshot(model), []

    def failing() -> Tensor:
        calls.append(1)
        if fail_at is not None and len(calls) > fail_at:
            raise KeyError("no more data")
        return closure()

    if fail_at is None:
        eq.scale_invariance(model, failing)
        assert len(calls) > 5
    else:
        with pytest.raises(KeyError, match="no more data"):
            eq.scale_invariance(model, failing)
    assert snapshot(model) == before


def test_a_graph_that_somebody_holds_stays_good() -> None:
    model, closure = net(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    held = closure()
    eq.scale_invariance(model, closure)
    held.backward()
    assert model[0].weight.grad is not None


def test_a_dependence_that_gradients_do_not_show_is_found_by_scaling() -> None:
    model, closure = net(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
    seen: Any = model[0].weight
    assert set(eq.scale_invariance(model, closure).invariant) == {"0.weight", "3.weight"}
    found = eq.scale_invariance(model, lambda: closure() + seen.detach().norm())
    assert found.invariant == {"3.weight": "neuron"}
    assert not found["0.weight"].neurons.any()


def test_groups_rotate_exactly_what_is_invariant() -> None:
    for name, granularity in (("batch", None), ("layer", "tensor"), ("group", 4)):
        model, run = example_models.make(f"resnet-{name}")
        groups = eq.param_groups(model, invariance=eq.scale_invariance(model, example_models.loss_of(run)))
        assert [(g["role"], g.get("granularity")) for g in groups if g["rotate"]] == [("conv", granularity)]
        eq.RotationalSGDM(groups, lr=0.1, weight_decay=1e-3)


def test_the_table() -> None:
    text = str(measured("resnet-batch"))
    assert "each neuron" in text
    assert "100%" in text
    assert "and 15 gains and biases that are not invariant" in text
    assert "4 parts" in str(measured("resnet-group"))


def test_what_makes_no_sense_is_refused() -> None:
    model, closure = net(nn.Linear(6, 3))
    w: Any = model[0].weight
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        ([], closure, {}, "model = list: must be a torch.nn.Module"),
        (nn.ReLU(), closure, {}, "must have at least one parameter"),
        (model, 3, {}, "closure = 3: must be a function"),
        (model, lambda: 1.0, {}, "closure returned 1.0: must be a tensor with one number"),
        (model, lambda: w, {}, r"closure returned tensor of shape \(3, 6\)"),
        (model, lambda: w.detach().sum(), {}, "without gradient"),
        (model, lambda: w.sum() / 0, {}, "closure returned (-)?inf: must be a finite loss"),
        (model, closure, {"tolerance": 0}, r"tolerance = 0: must be a finite number in \(0, 1\]"),
        (nn.Linear(2, 2).bfloat16(), closure, {}, "weight is in torch.bfloat16: must be float32 or float64"),
    ]
    for given, loss, options, message in cases:
        with pytest.raises(ValueError, match=message):
            eq.scale_invariance(given, loss, **options)


def test_a_closure_with_a_new_batch_every_time_is_refused() -> None:
    model, _ = net(nn.Linear(6, 3))
    batches = iter(torch.randn(99, 8, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="must be deterministic"):
        eq.scale_invariance(model, lambda: model(next(batches)).square().mean())
