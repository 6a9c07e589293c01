"""Gains and standardisation: same outputs at the start, plain weights after folding."""

import copy
import io
from typing import Any

import pytest
import torch
from tests.optim.model import example_models
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import equipoise as eq
from equipoise.optim import Gain, Standardized, add_gains, fold, standardize


def shaken(model: nn.Module) -> nn.Module:
    """Every parameter moved a little, so that gains are not what they started at, and running statistics too."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        for name, b in model.named_buffers():
            if b.is_floating_point() and "running" in name:
                b.add_(torch.rand(b.shape, generator=generator, dtype=b.dtype))
    return model


WAYS: dict[str, Any] = {
    "neuron": add_gains,
    "tensor": lambda m: add_gains(m, per="tensor"),
    "normalized": lambda m: add_gains(m, normalize=True),
    "embeddings": lambda m: add_gains(m, embeddings=True),
    "standardized": standardize,
    "standardized, no gain": lambda m: standardize(m, gain=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", example_models.ZOO)
def test_folded_models_compute_the_same_with_plain_keys(name: str, way: str) -> None:
    model, run = example_models.make(name, dtype=torch.float32)
    keys, order = list(model.state_dict()), [n for n, _ in model.named_parameters(remove_duplicate=False)]
    before = run()
    WAYS[way](model)
    if "standardized" not in way:
        torch.testing.assert_close(run(), before, atol=1e-5, rtol=1e-5)
    assert any("parametrizations" in k for k in model.state_dict())
    shaken(model).eval()
    for grad in (True, False):  # torch's transformers take a fast path without gradients
        with torch.set_grad_enabled(grad):
            wanted = run().detach()
            assert not torch.allclose(wanted, before, atol=1e-3)
    fold(model)
    with torch.no_grad():
        torch.testing.assert_close(run(), wanted, atol=1e-5, rtol=1e-5)
    assert sorted(model.state_dict()) == sorted(keys)
    assert [n for n, _ in model.named_parameters(remove_duplicate=False)] == order
    assert not any(parametrize.is_parametrized(m) for m in model.modules())


def test_folding_is_exact_to_a_millionth() -> None:
    for way in WAYS.values():
        model, run = example_models.make("vit")
        shaken(way(model))
        wanted = run()
        torch.testing.assert_close(fold(model) and run(), wanted, atol=1e-12, rtol=0)


LAYERS: list[tuple[nn.Module, tuple[int, ...], int]] = [
    (nn.Linear(4, 6), (2, 4), 0),
    (nn.Conv2d(4, 6, 3), (2, 4, 5, 5), 0),
    (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5), 0),
    (nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5), 1),
]


@pytest.mark.parametrize(("layer", "shape", "dim"), LAYERS, ids=lambda x: type(x).__name__)
def test_a_gain_scales_one_output(layer: nn.Module, shape: tuple[int, ...], dim: int) -> None:
    layer = add_gains(copy.deepcopy(layer).double())
    layer.register_parameter("bias", None)
    x = torch.randn(shape, dtype=torch.float64)
    before = layer(x)
    (gain,) = (p for n, p in layer.named_parameters() if n.endswith("gain"))
    assert gain.numel() == 6
    assert gain.shape[dim] == 6
    with torch.no_grad():
        gain.view(-1)[2] = 3.0
    wanted = before.clone()
    wanted[:, 2] *= 3
    torch.testing.assert_close(layer(x), wanted)


def test_a_gain_of_transformers_conv1d_scales_one_output() -> None:
    from transformers.pytorch_utils import Conv1D

    layer: Any = add_gains(Conv1D(6, 4))
    x = torch.randn(3, 4)
    before = layer(x).detach()
    with torch.no_grad():
        layer.parametrizations.weight[0].gain[0, 2] = 3.0
    after = layer(x).detach()
    torch.testing.assert_close(after[:, 2], 3 * before[:, 2])  # its bias starts at zero
    torch.testing.assert_close(after[:, [0, 1, 3, 4, 5]], before[:, [0, 1, 3, 4, 5]])


def test_normalised_gains_hold_the_norm_and_standardised_rows_the_mean() -> None:
    layer: Any = add_gains(nn.Linear(5, 3).double(), normalize=True)
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(7.0)
        layer.parametrizations.weight[0].gain.fill_(2.0)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.full((3,), 2.0, dtype=torch.float64))
    start = nn.Conv1d(4, 3, 2).double()
    centred = start.weight.detach() - start.weight.detach().mean((1, 2), keepdim=True)
    conv: Any = standardize(copy.deepcopy(start))
    torch.testing.assert_close(conv.weight, centred)
    fixed: Any = standardize(copy.deepcopy(start), gain=False)
    torch.testing.assert_close(fixed.weight, centred / centred.flatten(1).norm(dim=1)[:, None, None])
    torch.testing.assert_close(fixed.weight.sum((1, 2)), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_weight_that_is_set_comes_out() -> None:
    wanted = torch.randn(3, 5)
    for way in (WAYS["neuron"], WAYS["normalized"], WAYS["tensor"]):
        layer = way(nn.Linear(5, 3))
        shaken(layer)
        layer.weight = wanted
        torch.testing.assert_close(layer.weight.detach(), wanted)


def test_copies_checkpoints_and_optimizers() -> None:
    model, run = example_models.make("vit")
    plain = run().detach()
    add_gains(model)
    optimizer = eq.RotationalAdamW(eq.param_groups(model), lr=1e-2, weight_decay=0.1)
    gains = [n for n, role in eq.param_groups(model).roles.items() if n.endswith(".gain")]
    assert len(gains) == 10
    assert {eq.param_groups(model).roles[n] for n in gains} == {"gain"}
    weight: Any = model.get_submodule("blocks.0.fc1")
    norm = weight.parametrizations.weight.original.norm(dim=1).clone()
    example_models.loss_of(run)().backward()
    optimizer.step()
    torch.testing.assert_close(weight.parametrizations.weight.original.norm(dim=1), norm)  # rotated
    assert bool((weight.parametrizations.weight[0].gain != 1).all())  # learned
    twin = copy.deepcopy(model)
    batch = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(twin(batch), model(batch))
    shaken(twin)
    assert not torch.allclose(twin(batch), model(batch))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file))
    torch.testing.assert_close(twin(batch), model(batch))
    assert not torch.allclose(run(), plain)


def test_folding_one_side_of_a_tied_weight_leaves_the_other() -> None:
    model, run = example_models.make("gpt")
    assert isinstance(model, example_models.GPT)
    add_gains(model)
    shaken(model)
    wanted, table = run().detach(), model.wte.weight.detach().clone()
    fold(model)
    torch.testing.assert_close(run(), wanted)
    assert torch.equal(model.wte.weight, table)
    assert model.lm_head.weight is not model.wte.weight


def test_what_is_not_ours_stays() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), add_gains(nn.Linear(3, 3)))
    fold(model)
    assert parametrize.is_parametrized(model[0])
    assert not parametrize.is_parametrized(model[1])
    both: Any = parametrizations.weight_norm(nn.Linear(3, 3))
    weight = both.weight.detach().clone()
    add_gains(both, normalize=True)
    torch.testing.assert_close(both.weight.detach(), weight)
    with pytest.raises(ValueError, match="is also parametrised by _WeightNorm: must be removed first"):
        fold(both)


def chain(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(shaken(layer) for layer in layers)).double().eval()


CHAINS: dict[str, tuple[nn.Sequential, tuple[int, ...]]] = {
    "layer, linear": (chain(nn.LayerNorm(6), nn.Linear(6, 4)), (3, 5, 6)),
    "rms, linear": (chain(nn.RMSNorm(6), nn.Identity(), nn.Linear(6, 4, bias=False)), (3, 6)),
    "batch, linear": (chain(nn.BatchNorm1d(6), nn.Linear(6, 4)), (3, 6)),
    "no bias yet": (chain(nn.LayerNorm(6), nn.Linear(6, 4, bias=False)), (3, 6)),
    "batch, conv": (chain(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)), (3, 6, 5, 5)),
    "groups": (chain(nn.GroupNorm(2, 6), nn.Conv1d(6, 4, 3, groups=2)), (3, 6, 5)),
    "padded with itself": (chain(nn.BatchNorm1d(6), nn.Conv1d(6, 4, 3, padding=1, padding_mode="circular")), (3, 6, 5)),
    "with gains": (chain(nn.LayerNorm(6), add_gains(nn.Linear(6, 4))), (3, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_norms_fold_into_what_follows(name: str) -> None:
    model, shape = copy.deepcopy(CHAINS[name][0]), CHAINS[name][1]
    x = torch.randn(shape, dtype=torch.float64)
    wanted = model(x)
    fold(model, norms=True)
    torch.testing.assert_close(model(x), wanted, atol=1e-12, rtol=1e-12)
    norm: Any = model[0]
    assert bool((norm.weight == 1).all())
    assert getattr(norm, "bias", None) is None or bool((norm.bias == 0).all())


def test_transformers_conv1d_takes_a_norm_by_name() -> None:
    model, run = example_models.make("gpt2")
    shaken(model)
    wanted = run().detach()
    first, second = "transformer.h.0.", "transformer.h.1."
    fold(model, norms={f"{first}ln_1": f"{first}attn.c_attn", f"{second}ln_2": [f"{second}mlp.c_fc"]})
    torch.testing.assert_close(run(), wanted)
    assert bool((dict(model.named_parameters())[f"{first}ln_1.weight"] == 1).all())
    with pytest.raises(ValueError, match="lm_head: its weight is tied"):
        fold(model, norms={"transformer.ln_f": "lm_head"})


def test_several_layers_share_a_norm() -> None:
    model, run = example_models.make("bert")
    shaken(model)
    wanted = run().detach()
    after, first = "bert.encoder.layer.0.attention.output.LayerNorm", "bert.encoder.layer.0.intermediate.dense"
    fold(model, norms={after: first})
    assert not torch.allclose(run(), wanted)  # the norm's output is used twice here: only the user can know
    pair = nn.ModuleDict({"norm": nn.LayerNorm(4), "q": nn.Linear(4, 3), "k": nn.Linear(4, 3)}).double()
    shaken(pair)
    x = torch.randn(2, 4, dtype=torch.float64)
    expected = pair["q"](pair["norm"](x)) * pair["k"](pair["norm"](x))
    fold(pair, norms={"norm": ["q", "k"]})
    torch.testing.assert_close(pair["q"](pair["norm"](x)) * pair["k"](pair["norm"](x)), expected)


class Own(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return self[1](self[0](input)) + self[0](input)


SHARED = nn.LayerNorm(6)
UNSAFE: dict[str, nn.Sequential] = {
    "zeros at the edges": chain(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, padding=1)),
    "transposed": chain(nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 4, 3)),
    "own forward": Own(SHARED, nn.Linear(6, 6)),
    "used twice": nn.Sequential(SHARED, nn.Linear(6, 6), SHARED),
    "something between": chain(nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4)),
    "other dimension": chain(nn.GroupNorm(2, 6), nn.Linear(6, 4)),
}


def biased(kind: str) -> nn.Sequential:
    """Two norms, each before a Linear, that share what is asked for."""
    torch.manual_seed(0)
    model: Any = shaken(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)).double())
    if kind == "layers' biases":
        model[1].bias = model[3].bias
    elif kind == "norms' biases":
        model[0].bias = model[2].bias
    elif kind == "norms' weights":
        model[0].weight = model[2].weight
    else:
        model[0].bias = model[3].bias
    return model


SHARING = {
    "layers' biases": "0 cannot be folded into 1: its bias is tied",
    "norms' biases": "0 cannot be folded into 1: the norm's bias is tied",
    "norms' weights": "0 cannot be folded into 1: the norm's weight is tied",
    "a norm's and a layer's bias": "0 cannot be folded into 1: the norm's bias is tied",
}


@pytest.mark.parametrize("kind", SHARING)
def test_norms_stay_where_something_is_shared(kind: str) -> None:
    model = biased(kind)
    x = torch.randn(3, 6, dtype=torch.float64)
    wanted = model(x).detach()
    with pytest.raises(ValueError, match=SHARING[kind]):
        fold(model, norms={"0": "1"})
    torch.testing.assert_close(fold(model, norms=True)(x), wanted)


class Doubled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * w


def test_named_norms_that_would_come_out_wrong_are_refused() -> None:
    def made() -> Any:
        torch.manual_seed(0)
        norms = {"ln": nn.LayerNorm(4), "ln2": nn.LayerNorm(4)}
        return shaken(nn.ModuleDict(norms | {"fc": nn.Linear(4, 3), "fc2": nn.Linear(4, 3)}))

    def refused(model: Any, norms: dict[str, Any], message: str) -> None:
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=message):
            fold(model, norms=norms)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

    for name in ("weight", "bias"):
        model = made()
        parametrize.register_parametrization(model["ln"], name, Doubled())
        refused(model, {"ln": "fc"}, f"ln cannot be folded into fc: the norm's {name} is parametrised")
    pruned = made()
    prune.random_unstructured(pruned["fc"], "weight", amount=2)
    refused(pruned, {"ln": "fc"}, "its weight is parametrised by something else")
    refused(made(), {"ln": ["fc", "fc"]}, "fc is named twice: must be named once")
    refused(made(), {"ln": "fc", "ln2": ["fc2", "fc"]}, "fc is named after both ln and ln2: must be named once")
    refused(made(), {"ln": []}, "ln must have at least one layer")


@pytest.mark.parametrize("name", UNSAFE)
def test_norms_stay_where_folding_is_not_exact(name: str) -> None:
    model = shaken(copy.deepcopy(UNSAFE[name]))
    before = copy.deepcopy(model.state_dict())
    fold(model, norms=True)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_norm_without_bias_folds_into_padded_convolutions() -> None:
    model: Any = chain(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, padding=1))
    nn.init.zeros_(model[0].bias)
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    wanted = model(x)
    fold(model, norms=True)
    torch.testing.assert_close(model(x), wanted)
    assert bool((model[0].weight == 1).all())


def test_what_makes_no_sense_is_refused() -> None:
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    cases: list[tuple[Any, str]] = [
        (lambda: add_gains([]), "model = list: must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: fold(3), "model = int: must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: add_gains(nn.ReLU()), "must match a Linear, a convolution"),
        (lambda: add_gains(nn.Linear(2, 2), per="row"), "per = 'row': must be one of neuron, tensor"),
        (lambda: add_gains(nn.Sequential(nn.Linear(2, 2)), modules="fc*"), r"modules = 'fc\*': must match a name"),
        (lambda: add_gains(add_gains(nn.Linear(2, 2))), "has a gain already: must be folded first"),
        (lambda: standardize(add_gains(nn.Linear(2, 2))), "has a gain already"),
        (lambda: add_gains(zero, normalize=True), "2 neurons are all zero"),
        (lambda: standardize(nn.Linear(1, 2)), "2 neurons have equal weights only"),
        (lambda: fold(nn.Linear(2, 2), norms=3), "norms = 3: must be True, False, or a dict"),  # type: ignore[arg-type]
        (
            lambda: fold(example_models.ViT(), norms={"nrm": "head"}),
            "norms = 'nrm': must match a name of the model, such as norm",
        ),
        (lambda: fold(example_models.ViT(), norms={"norm": "blocks.0.fc2"}), "a gain for each of the 32 inputs"),
        (lambda: fold(example_models.ViT(), norms={"head": "norm"}), "must be a LayerNorm"),
        (lambda: fold(UNSAFE["transposed"], norms={"0": "1"}), "at the edges zeros come in"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    half = nn.Sequential(nn.Linear(3, 3), zero)
    with pytest.raises(ValueError, match="are all zero"):
        add_gains(half, normalize=True)
    assert not any(parametrize.is_parametrized(m) for m in half)  # all or nothing


def test_the_parametrisations_are_public() -> None:
    w = torch.randn(4, 3)
    torch.testing.assert_close(Gain(w)(w), w)
    assert Standardized(w, gain=False)(w).norm(dim=1).allclose(torch.ones(4))
