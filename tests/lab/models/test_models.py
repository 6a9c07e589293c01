"""Models: the papers' sizes, outputs of the right shape, what they must not see, and scale invariance by norms."""

import pytest
import torch

from equipoise.lab.data import Data, Split, load
from equipoise.lab.models import make


def images(side: int, channels: int = 3, classes: int = 10) -> Data:
    part = Split(torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0)), torch.zeros(2))
    return Data("images", "classes", part, part, classes)


def tokens(length: int = 16, vocabulary: int = 50) -> Data:
    x = torch.randint(vocabulary, (4, length), generator=torch.Generator().manual_seed(0))
    return Data("tokens", "tokens", Split(x, x), Split(x, x), vocabulary, {"length": length})


@pytest.mark.parametrize(
    ("size", "side", "classes", "parameters"),
    # He et al. Table 6: 0.27 M (269,722; their shortcuts have no weights, ours 2,752); the others are torchvision's.
    [("resnet-20", 32, 10, 272_474), ("resnet-18", 224, 1000, 11_689_512), ("resnet-50", 224, 1000, 25_557_032)],
)
def test_resnets_have_the_size_of_the_papers(size: str, side: int, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        model = make("resnet", images(side, classes=classes), 0, size=size)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("norm", ["batch", "layer", "group", "none"])
def test_resnet_runs_and_batch_norm_makes_filters_scale_invariant(norm: str) -> None:
    data = images(8, channels=1)
    model = make("resnet", data, 0, size="resnet-8", norm=norm)
    x, _ = data.train.batches(2, 0)(1)
    before = model(x)
    assert before.shape == (2, 10)
    conv = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    with torch.no_grad():
        conv.weight[0] *= 3  # one filter: batch norm alone undoes it
    assert torch.allclose(model(x), before, atol=1e-3) == (norm == "batch")


def test_vgg_and_vit_have_the_size_of_the_papers() -> None:
    with torch.device("meta"):
        vgg = make("vgg", images(32), 0)
        deit = make("vit", images(224, classes=1000), 0, size="deit-tiny")
    convolutions = sum(m.weight.numel() for m in vgg.modules() if isinstance(m, torch.nn.Conv2d))
    assert convolutions == 9_402_048  # VGG-13's ten, by hand
    assert sum(p.numel() for p in deit.parameters()) == 5_717_416  # timm's deit_tiny_patch16_224


def test_the_fast_resnet_is_pages() -> None:
    with torch.device("meta"):
        model = make("fast_resnet", images(32), 0)
    assert sum(p.numel() for p in model.parameters()) == 6_573_120  # 8 convolutions, 8 norms, the head, by hand
    small = make("fast_resnet", images(16, channels=1), 0, width=2, norm="none")
    assert small(torch.randn(3, 1, 16, 16)).shape == (3, 10)
    with pytest.raises(ValueError, match="images have 4 pixels a side: must have 8 or more"):
        make("fast_resnet", images(4), 0)


@pytest.mark.parametrize(("size", "millions"), [("0.1M", 0.1), ("0.4M", 0.4), ("3M", 3), ("10M", 10)])
def test_gpts_have_the_size_of_their_names(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = make("gpt", tokens(64, 256), 0, size=size, tied=True)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(millions * 1e6, rel=0.2)


def test_the_initial_size_of_transformers() -> None:
    for std in (0.02, 0.1):
        weights = make("gpt", tokens(), 0, size="0.4M", std=std).state_dict()
        for name, wanted in (("up", std), ("down", std / 2), ("attention.out", std / 2)):
            assert float(weights[f"layers.0.{name}.weight"].std()) == pytest.approx(wanted, rel=0.05)
    with pytest.raises(ValueError, match=r"std = 0: must be"):
        make("gpt", tokens(), 0, std=0)


def test_resnet_with_weight_standardisation_is_scale_invariant_without_norms() -> None:
    data = images(8, channels=1)
    x, _ = data.train.batches(2, 0)(1)
    model = make("resnet", data, 0, size="resnet-8", norm="none", standardised=True)
    before = model(x)
    weight = max((p for p in model.parameters() if p.ndim == 4), key=lambda p: p.numel())
    with torch.no_grad():
        weight *= 3
    assert torch.allclose(model(x), before, rtol=1e-3, atol=1e-4)


def test_vgg_with_weight_standardisation_is_scale_invariant_without_norms() -> None:
    data = images(8, channels=1)
    x, _ = data.train.batches(2, 0)(1)
    for standardised in (False, True):
        model = make("vgg", data, 0, width=8, norm="none", standardised=standardised)
        before = model(x)
        assert before.shape == (2, 10)
        weight = max((p for p in model.parameters() if p.ndim == 4), key=lambda p: p.numel())
        with torch.no_grad():
            weight[0] *= 3
        assert torch.allclose(model(x), before, rtol=1e-3, atol=1e-7) == standardised


def test_vit_sees_every_patch() -> None:
    data = images(8, channels=1)
    model = make("vit", data, 0)
    x = torch.randn(1, 1, 8, 8, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert (x.grad != 0).all()
    with pytest.raises(ValueError, match="patch = 3: must divide the side, 8"):
        make("vit", data, 0, patch=3)


def test_gpt_has_gpt2s_size_and_does_not_see_the_future() -> None:
    with torch.device("meta"):
        large = make("gpt", tokens(1024, 50304), 0, size="124M", tied=True)
    assert sum(p.numel() for p in large.parameters()) == 124_373_760  # nanoGPT's, without biases
    model, data = make("gpt", tokens(), 0, qk_norm=True), tokens()
    x, _ = data.train.batches(4, 0)(1)
    y = x.clone()
    y[:, 10] = (y[:, 10] + 1) % 50
    a, b = model(x), model(y)
    assert torch.equal(a[:, :10], b[:, :10])
    assert not torch.equal(a[:, 10:], b[:, 10:])


def test_seq2seq_sees_the_source_but_not_its_padding_nor_the_future() -> None:
    data = load("phonemes", size=100)
    model = make("seq2seq", data, 0)
    x, y = data.train.batches(8, 0)(1)
    scores = model(x, y[:, :-1])
    assert scores.shape == (*y[:, 1:].shape, data.outputs)
    longer = torch.cat([x, torch.zeros(8, 1, dtype=torch.long)], 1)[:, : data.info["length"]]
    assert torch.allclose(model(longer, y[:, :-1]), scores, atol=1e-5)
    other = x.clone()
    other[:, 0] = 3 + (other[:, 0] - 2) % 20
    assert not torch.allclose(model(other, y[:, :-1]), scores, atol=1e-5)
    later = y[:, :-1].clone()
    later[:, 4] = 5
    assert torch.allclose(model(x, later)[:, :4], scores[:, :4], atol=1e-6)


def test_walk_is_equation_88() -> None:
    data = load("noise", inputs=6, outputs=4)
    model = make("walk", data, 0).double()
    X = data.train.batches(10, 0)(1)[0].double()
    W, into, out = (t.detach().numpy() for t in (model.linear.weight, model.gamma_in, model.gamma_out))  # type: ignore[union-attr]
    z = (X.numpy() * into) @ W.T
    expected = out * (z - z.mean(0)) / (z.var(0) + 1e-5) ** 0.5
    assert abs(model(X).detach().numpy() - expected).max() < 1e-9


def test_a_seed_makes_the_weights_and_leaves_torchs_generator_alone() -> None:
    data = load("regression", samples=20, inputs=3)
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    one, two, three = (make("mlp", data, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), wanted)
    a, b, c = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (one, two, three))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_depth_0_is_linear_and_a_wrong_task_is_told() -> None:
    data = load("regression", samples=20, inputs=3, outputs=2)
    model = make("mlp", data, 0, depth=0, bias=False)
    assert [tuple(p.shape) for p in model.parameters()] == [(2, 4)]
    with pytest.raises(ValueError, match="model = 'gpt': must be given data of the task tokens, not regression"):
        make("gpt", data, 0)
