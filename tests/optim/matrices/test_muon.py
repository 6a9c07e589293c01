"""Muon and steepest descent: the published step, the right state, every kind of matrix, and the modular step."""

import contextlib
import copy
import itertools
import math
from typing import Any

import pytest
import torch
from tests.optim.engine.live_bytes import LiveBytes, NoSync
from tests.optim.model import example_models
from torch._subclasses import FakeTensorMode

import equipoise as eq
from equipoise import geometry, theory
from equipoise.optim.engine.tensor_list import TensorList
from equipoise.theory.directions import matrix_scale as lr_scale

SHAPES = ((24, 16), (16, 24), (16, 16), (8,))


def parameters(shapes: Any = SHAPES, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in shapes]


def run(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: int = 3) -> None:
    for t in range(steps):
        generator = torch.Generator().manual_seed(10 + t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        optimizer.step()


CLASSIC = {"coefficients": "muon", "steps": 5, "bound": "frobenius"}


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("scale", "theirs"), [("original", "original"), ("adam", "match_rms_adamw")])
def test_is_torchs_muon_with_its_coefficients(
    nesterov: bool, scale: str, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch orthogonalises in bfloat16, here in float32, so that the two can be held to float32's rounding."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.float().clone())
    ours, peers = parameters(SHAPES[:3]), parameters(SHAPES[:3])
    polar = CLASSIC | {"dtype": torch.float32}
    run(eq.Muon(ours, lr=0.02, nesterov=nesterov, weight_decay=0.1, scale=scale, polar=polar), ours)
    run(torch.optim.Muon(peers, lr=0.02, nesterov=nesterov, weight_decay=0.1, adjust_lr_fn=theirs), peers)
    for p, q in zip(ours, peers, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=2e-5)


def test_is_torchs_muon_in_bfloat16_to_its_rounding() -> None:
    ours, peers = parameters(SHAPES[:3]), parameters(SHAPES[:3])
    run(eq.Muon(ours, lr=0.02, weight_decay=0.1, polar=CLASSIC | {"dtype": torch.bfloat16}), ours, 1)
    run(torch.optim.Muon(peers, lr=0.02, weight_decay=0.1), peers, 1)
    for p, q in zip(ours, peers, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0.02 * 0.03)


def test_the_step_is_the_polar_factor_in_float64() -> None:
    """By the singular value decomposition: w ← (1−ηλ)w − η√max(1, m/n)·UVᵀ of the Nesterov average."""
    params = parameters(SHAPES[:3], torch.float64)
    start = [p.detach().clone() for p in params]
    optimizer = eq.Muon(params, lr=0.1, momentum=0.9, weight_decay=0.2, polar={"method": "svd"})
    run(optimizer, params, 1)
    for p, w in zip(params, start, strict=True):
        assert p.grad is not None
        u, _, vt = torch.linalg.svd((1 - 0.9**2) * p.grad, full_matrices=False)
        expected = (1 - 0.02) * w - 0.1 * math.sqrt(max(1, p.shape[0] / p.shape[1])) * (u @ vt)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_momentum_buffer_is_the_average_and_gradients_stay(nesterov: bool, dtype: torch.dtype) -> None:
    params = parameters(SHAPES[:3], dtype)
    optimizer = eq.Muon(params, momentum=0.9, nesterov=nesterov)
    averages = [torch.zeros(p.shape, dtype=torch.float64) for p in params]
    for t in range(5):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * t + i)).to(dtype)
            averages[i] = 0.9 * averages[i] + 0.1 * p.grad.double()
        kept = [copy.deepcopy(p.grad) for p in params]
        optimizer.step()
        for p, g in zip(params, kept, strict=True):
            assert p.grad is not None
            assert torch.equal(p.grad, g)  # type: ignore[arg-type]
    for p, m in zip(params, averages, strict=True):
        torch.testing.assert_close(optimizer.state[p]["momentum_buffer"].double(), m, rtol=1e-5, atol=1e-6)


def test_equal_shapes_together_are_each_alone() -> None:
    together = parameters([(16, 3, 3, 3)] * 4 + [(24, 16)] * 3)
    alone = parameters([(16, 3, 3, 3)] * 4 + [(24, 16)] * 3)
    run(eq.Muon(together), together)
    optimizers = [eq.Muon([p]) for p in alone]
    for t in range(3):
        generator = torch.Generator().manual_seed(10 + t)
        for p in alone:
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_split_qkv_is_three_parameters() -> None:
    fused = parameters([(24, 16)])
    parts = [torch.nn.Parameter(x.clone()) for x in fused[0].detach().split(8)]
    optimizer, apart = eq.Muon([{"params": fused, "split": 3}]), eq.Muon(parts)
    for t in range(3):
        g = torch.randn(24, 16, generator=torch.Generator().manual_seed(t))
        fused[0].grad = g
        for p, x in zip(parts, g.split(8), strict=True):
            p.grad = x
        optimizer.step()
        apart.step()
    torch.testing.assert_close(fused[0].detach(), torch.cat([p.detach() for p in parts]), rtol=1e-5, atol=1e-6)


def test_experts_are_a_stack_and_convolutions_one_matrix() -> None:
    experts, single = parameters([(4, 12, 8)]), parameters([(4, 12, 8)])
    slices = [torch.nn.Parameter(x.clone()) for x in single[0].detach()]
    g = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(1))
    experts[0].grad = g
    for p, x in zip(slices, g, strict=True):
        p.grad = x
    eq.Muon(experts).step()
    eq.Muon(slices).step()
    torch.testing.assert_close(experts[0].detach(), torch.stack([p.detach() for p in slices]), rtol=1e-5, atol=1e-6)
    conv = parameters([(24, 3, 5)])
    start = conv[0].detach().clone()
    conv[0].grad = torch.randn(24, 3, 5, generator=torch.Generator().manual_seed(1))
    optimizer = eq.Muon([{"params": conv, "role": "conv"}], lr=0.1, weight_decay=0.0, polar={"method": "svd"})
    optimizer.step()
    update = (start - conv[0].detach()).reshape(24, 15) / 0.1
    expected = torch.full((15,), lr_scale(24, 15, "original"))  # out × in·k
    torch.testing.assert_close(torch.linalg.svdvals(update), expected, rtol=1e-4, atol=1e-4)


def test_scales() -> None:
    assert lr_scale(64, 16, "original") == 2.0
    assert lr_scale(16, 64, "original") == 1.0
    assert lr_scale(16, 64, "adam") == pytest.approx(0.2 * 8)
    assert lr_scale(16, 64, "spectral") == 0.5
    u = geometry.polar(torch.randn(300, 200, dtype=torch.float64), method="svd") * lr_scale(300, 200, "adam")
    assert float(u.square().mean().sqrt()) == pytest.approx(0.2, rel=0.01)


def test_the_rest_is_adamw_chosen_by_roles() -> None:
    model, twin = example_models.GPT(), example_models.GPT()
    twin.load_state_dict(model.state_dict())
    optimizer = eq.Muon(eq.param_groups(model), lr=0.02, adam={"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.01})
    adamw = torch.optim.AdamW(eq.param_groups(twin), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    roles = {g["role"]: g["muon"] for g in optimizer.param_groups}
    assert roles["matrix"] is True
    assert not any(muon for role, muon in roles.items() if role != "matrix")
    generator = torch.Generator().manual_seed(0)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        p.grad = q.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    adamw.step()
    names = eq.param_groups(example_models.GPT()).roles
    for (name, p), (_, q) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if names[name] == "matrix":
            assert not torch.equal(p, q)
            assert set(optimizer.state[p]) == {"step", "momentum_buffer"}
        else:
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)
            assert set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"}


def test_one_group_is_split_by_dimensions_and_names_stay() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    optimizer = eq.Muon(model.named_parameters())
    assert [(g["muon"], g["param_names"]) for g in optimizer.param_groups] == [
        (True, ["0.weight", "2.weight"]),
        (False, ["0.bias", "1.weight", "1.bias", "2.bias"]),
    ]
    assert optimizer.param_groups[1]["lr"] == 3e-4


def test_of_a_group_that_is_split_the_rest_takes_adams_options() -> None:
    """A group's own lr and decay are for its matrices; what only Adam has is the group's."""
    w, b = parameters([(6, 4), (6,)])
    adam = {"lr": 1e-3, "weight_decay": 0.0, "decay": "lr"}
    group = {"params": [w, b], "lr": 0.5, "weight_decay": 0.3, "decay": "corrected", "lr_max": 2.0, "eps": 1e-5}
    matrices, rest = eq.Muon([group], adam=adam).param_groups
    assert {k: matrices[k] for k in ("lr", "weight_decay", "decay", "lr_max")} == {
        "lr": 0.5, "weight_decay": 0.3, "decay": "corrected", "lr_max": 2.0,
    }  # fmt: skip
    assert {k: rest[k] for k in ("lr_max", "eps", *adam)} == {"lr_max": None, "eps": 1e-5, **adam}
    matrices, rest = eq.Muon([{"params": [w, b], "lr": 0.5, "weight_decay": 0.3}]).param_groups
    assert (rest["lr"], rest["weight_decay"], rest["betas"]) == (3e-4, 0.3, (0.9, 0.95))  # adam says no decay
    for whole in ({"muon": False}, {"role": "head"}):  # not split: what is said stays
        (kept,) = eq.Muon([{"params": [w, b], "lr": 0.5, "weight_decay": 0.3, **whole}], adam=adam).param_groups
        assert (kept["lr"], kept["weight_decay"]) == (0.5, 0.3)
    (_, rest) = eq.Muon([w, b], lr=0.5, decay="corrected", lr_max=0.5, adam={"lr": 0.01}).param_groups
    assert rest["lr_max"] == 0.01  # not that of the matrices


NAMED: dict[str, Any] = {
    "pairs": lambda m: m.named_parameters(),
    "a group of pairs": lambda m: [{"params": m.named_parameters(), "lr": 0.1}],
    "names beside": lambda m: [{"params": m.parameters(), "param_names": [n for n, _ in m.named_parameters()]}],
    "names in a generator": lambda m: [{"params": m.parameters(), "param_names": (n for n, _ in m.named_parameters())}],
}


@pytest.mark.parametrize("make", [eq.Muon, eq.RotationalMuon, eq.HyperballMuon, eq.SteepestDescent])
@pytest.mark.parametrize("how", NAMED)
def test_each_split_group_has_its_own_names(make: Any, how: str) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))

    def names(groups: Any) -> list[list[str]]:
        return [g["param_names"] for g in groups]

    expected = [["0.weight", "2.weight"], ["0.bias", "1.weight", "1.bias", "2.bias"]]
    one, two = model(), model()
    optimizer, fresh = make(NAMED[how](one)), make(NAMED[how](two))
    run(optimizer, list(one.parameters()))
    state = optimizer.state_dict()
    assert names(optimizer.param_groups) == names(state["param_groups"]) == expected
    fresh.load_state_dict(state)
    assert names(fresh.param_groups) == expected
    extra = torch.nn.Linear(2, 2)
    optimizer.add_param_group({"params": extra.named_parameters("extra")})
    assert names(optimizer.param_groups) == [*expected, ["extra.weight"], ["extra.bias"]]


@pytest.mark.parametrize("make", [eq.Muon, eq.SteepestDescent])
def test_of_a_split_group_all_is_added_or_nothing(make: Any) -> None:
    w, b, more, bias = parameters([(6, 4), (6,), (3, 4), (3,)])
    optimizer = make([w, b])
    for bad in (
        {"params": [more, b]},
        {"params": [more, bias], "param_names": ["one"]},
        {"params": [("more", more), bias]},
        {"params": [more, bias, bias]},
    ):
        with pytest.raises(ValueError, match=r"more than one parameter group|names|twice"):
            optimizer.add_param_group(bad)
        assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize(("shape", "nesterov"), [((32, 32), False), ((48, 24), True), ((24, 96), False)])
def test_rotational_muon_turns_by_muons_equilibrium(shape: tuple[int, int], nesterov: bool) -> None:
    """Random-walk gradients: the mean angle of the rows is theory's for the plain optimizer."""
    w = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    optimizer = eq.RotationalMuon([w], lr=0.02, weight_decay=0.1, nesterov=nesterov)
    setting: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": nesterov}
    wanted = theory.stationary("muon", shape=shape, **setting).rotation
    norms, angles = w.detach().norm(dim=1), []
    generator = torch.Generator().manual_seed(1)
    for t in range(150):
        before = w.detach().clone()
        w.grad = torch.randn(shape, generator=generator)
        optimizer.step()
        if t >= 20:
            cos = torch.nn.functional.cosine_similarity(before.double(), w.detach().double(), dim=1)
            angles.append(torch.acos(cos.clamp(-1, 1)).mean().item())
    torch.testing.assert_close(w.detach().norm(dim=1), norms, rtol=1e-4, atol=0)
    assert sum(angles) / len(angles) == pytest.approx(wanted, rel=0.03)


def test_hyperball_muon_steps_by_lr() -> None:
    w = torch.nn.Parameter(torch.randn(20, 30))
    start = w.detach().clone()
    w.grad = torch.randn(20, 30)
    eq.HyperballMuon([w], lr=0.05).step()
    assert w.detach().norm().item() == pytest.approx(start.norm().item(), rel=1e-5)
    assert (w.detach() - start).norm().item() / start.norm().item() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "big"}, "scale = 'big'"),
        ({"split": 5}, "split = 5: must divide the 24 rows"),
        ({"polar": {"step": 3}}, "polar"),
        ({"adam": {"eta": 3}}, "adam"),
        ({"polar": {"dtype": torch.float16}}, "dtype = torch.float16: must be torch.bfloat16"),
        ({"polar": {"dtype": torch.bfloat16, "accuracy": 1e-3}}, "rounding in torch.bfloat16 may cost"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.Muon(parameters([(24, 16)]), **options)


def test_muon_for_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(8,\): must have two dimensions"):
        eq.Muon([{"params": parameters([(8,)]), "muon": True}])


def test_the_modular_step_is_the_closed_form() -> None:
    """Appendix C on three layers: ΔW_l = −(η/s_l)·dualize_l(G_l), η = (1/λ)·Σ ‖G_k‖†_k/s_k."""
    params = parameters([(6, 4), (5, 6), (5,)], torch.float64)
    norms = [geometry.named("spectral"), geometry.named("sign"), geometry.named("rms")]
    scales = [1.0, 2.0, 0.5]
    groups = [{"params": [p], "norm": n, "layer_scale": s} for p, n, s in zip(params, norms, scales, strict=True)]
    start = [p.detach().clone() for p in params]
    optimizer = eq.SteepestDescent(groups, sharpness=3.0)
    run(optimizer, params, 1)
    grads = [p.grad for p in params]
    modular = geometry.MaxOver(norms, scales)
    expected: Any = modular.step(grads, 3.0)  # type: ignore[arg-type]
    for p, w, delta in zip(params, start, expected, strict=True):
        torch.testing.assert_close(p.detach() - w, delta, rtol=1e-10, atol=1e-12)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(float(modular.dual(grads)) / 3.0)  # type: ignore[arg-type]


STEEPEST: dict[str, dict[str, Any]] = {
    "default": {},
    "five steps": {"polar": {"steps": 5}},
    "bfloat16": {"polar": {"dtype": torch.bfloat16}},
    "exact": {"polar": {"method": "svd"}},
}


@pytest.mark.parametrize("name", STEEPEST)
@pytest.mark.parametrize("norm", ["spectral", "rms->rms"])
def test_steepest_descent_iterates_to_what_it_says(name: str, norm: str) -> None:
    """Against the exact direction and dual norm: within 1e-2 by default, to rounding where exactness is asked for."""
    params = parameters([(24, 16), (16, 24)])
    start = [p.detach().clone() for p in params]
    optimizer = eq.SteepestDescent(params, norm=norm, sharpness=2.0, **STEEPEST[name])
    run(optimizer, params, 1)
    lr = sum(float(geometry.named(norm).dual(p.grad)) for p in params if p.grad is not None) / 2
    near = {"exact": 1e-5, "bfloat16": 0.3}.get(name, 1e-2)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(lr, rel=near)
    for p, w in zip(params, start, strict=True):
        assert p.grad is not None
        exact = geometry.named(norm).dualize(p.grad)
        made = (w - p.detach()) / optimizer.param_groups[0]["lr"]
        assert float(geometry.named(norm).norm(made - exact)) < near


def test_steepest_descent_is_exact_in_float64_and_decomposes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.dtype] = []
    svd = torch.linalg.svd
    monkeypatch.setattr(torch.linalg, "svd", lambda x, **options: made.append(x.dtype) or svd(x, **options))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        params = parameters([(24, 16), (8,)], dtype)
        run(eq.SteepestDescent(params, sharpness=2.0), params, 1)
    assert set(made) == {torch.float64}


def test_steepest_descent_takes_norms_from_roles() -> None:
    model = example_models.GPT()
    optimizer = eq.SteepestDescent(eq.param_groups(model), lr=0.01)
    norms = {g["role"]: g["norm"] for g in optimizer.param_groups}
    assert (norms["matrix"], norms["gain"], norms["embedding"]) == ("spectral", "rms", "embedding")
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    roles = eq.param_groups(example_models.GPT()).roles
    for name, p in model.named_parameters():
        update = (start[name] - p.detach()) / 0.01
        if roles[name] == "embedding":  # each token's row at RMS 1
            torch.testing.assert_close(update.square().mean(1).sqrt(), torch.ones(len(p)), rtol=1e-3, atol=1e-3)
        elif roles[name] == "gain":
            assert float(update.square().mean().sqrt()) == pytest.approx(1.0, rel=1e-3)


def test_steepest_descent_lowers_a_quadratic_at_its_sharpness() -> None:
    """F(W) = ½‖AW − B‖²: with L the sharpness in the spectral norm every step goes down."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(12, n, generator=generator, dtype=torch.float64) for n in (8, 5))
    w = torch.nn.Parameter(torch.zeros(8, 5, dtype=torch.float64))

    def loss() -> torch.Tensor:
        return 0.5 * (a @ w - b).square().sum()

    sharp = float(torch.linalg.svdvals(a)[0] ** 2) * 5  # ‖∇²F‖ along the norm is at most σ²·rank
    optimizer = eq.SteepestDescent([w], norm="spectral", sharpness=sharp)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        losses.append(value.item())
        optimizer.step()
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert losses[-1] < 0.7 * losses[0]


MiB = 1 << 20
KINDS: dict[str, Any] = {
    "Muon": eq.Muon,
    "Muon, bfloat16": lambda params: eq.Muon(params, polar={"dtype": torch.bfloat16}),
    "Muon, not Nesterov": lambda params: eq.Muon(params, nesterov=False),
    "SteepestDescent": lambda params: eq.SteepestDescent(params, momentum=0.9),
}


def most_live(make: Any, shapes: list[tuple[int, ...]], device: str = "meta") -> int:
    """The most bytes that a second step, when there is state, holds beside parameters, gradients and state."""
    params = [torch.nn.Parameter(torch.zeros(s, device=device)) for s in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = make(params)
    optimizer.step()
    with LiveBytes() as count:
        optimizer.step()
    assert count.now < 1024  # nothing is kept
    return count.peak


def torchs(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(params, lr=0.1)


@pytest.mark.parametrize("name", KINDS)
def test_a_step_holds_a_few_matrices_and_not_all(name: str) -> None:
    """Of 32 matrices of 4096²: four in float32, as much as torch in bfloat16; small ones share at most 80 MiB."""
    many, one = [(4096, 4096)] * 32, 64 * MiB
    assert most_live(KINDS[name], many) <= 4 * one + MiB
    assert most_live(KINDS[name], many) <= most_live(torchs, many) + one + MiB
    small = [(256, 256)] * 60 + [(256, 1024)] * 20
    assert most_live(KINDS[name], small) <= most_live(torchs, small) + 80 * MiB
    if "bfloat16" in name:
        assert most_live(KINDS[name], many) <= most_live(torchs, many) + MiB


def test_live_bytes_are_counted() -> None:
    with LiveBytes() as count:
        x = torch.zeros(MiB // 4, device="meta")
        assert count.now == MiB
        y = x.view(2, -1)  # of the same memory
        z = y + 1
        assert count.now == 2 * MiB
        del z
        x.add_(1)
        assert (count.now, count.peak) == (MiB, 2 * MiB)
        del x
        assert count.now == MiB
        del y
        assert count.now == 0


def one_call(optimizer: Any, params: list[torch.nn.Parameter]) -> None:
    """The rule on all parameters of each group, as the engine calls it."""
    for group in optimizer.param_groups:
        rule, _ = optimizer.pair(group)
        g = TensorList([p.grad for p in group["params"] if p.grad is not None])
        averages = tuple(TensorList([torch.zeros_like(p) for p in group["params"]]) for _ in rule.state)
        rule(g, averages, rule.numbers(1, group), group)
    if getattr(optimizer, "sharpness", None) is not None:
        optimizer._find_lr()


RULES: dict[str, Any] = KINDS | {
    "RotationalMuon": eq.RotationalMuon,
    "HyperballMuon": eq.HyperballMuon,
    "SteepestDescent, sharpness": lambda params: eq.SteepestDescent(params, sharpness=2.0),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("where", ["fake", "meta", "without waiting"])
def test_rules_do_not_look_at_numbers(name: str, where: str) -> None:
    """They run where there are none, and no host waits for its device."""
    mode: Any = {"fake": FakeTensorMode, "meta": contextlib.nullcontext, "without waiting": NoSync}[where]()
    with mode, torch.no_grad():
        params = [
            torch.nn.Parameter(torch.ones(s, device="meta" if where == "meta" else "cpu")) for s in ((6, 4), (4, 9))
        ]
        for p in params:
            p.grad = torch.ones_like(p)
        one_call(RULES[name](params), params)


def test_small_matrices_share_a_call_and_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(8, 16), (600, 2000), (16, 8), (8, 16), (600, 2000), (16, 8), (8, 16)]
    params = parameters(shapes)
    optimizer = eq.Muon(params)
    calls: list[tuple[int, ...]] = []
    polar = geometry.polar
    monkeypatch.setattr(geometry, "polar", lambda x, **options: calls.append(tuple(x.shape)) or polar(x, **options))
    run(optimizer, params, 1)
    assert sorted(calls) == [(1, 600, 2000), (1, 600, 2000), (2, 16, 8), (3, 8, 16)]
