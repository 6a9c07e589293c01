"""The polar factor against the singular value decomposition in float64: errors, scales, shapes, dtypes, odd inputs."""

import math
from collections.abc import Callable

import pytest
import torch
from norm_cases import random

from equipoise import geometry as eg
from equipoise.geometry import _iterate, coefficients
from equipoise.geometry import polar_factor as module
from equipoise.geometry.polar_factor import fast_dtype, plan, polar

F16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def with_values(values: torch.Tensor, m: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in float64 with these singular values, and its polar factor."""
    k = len(values)
    u, _ = torch.linalg.qr(random((m, k), seed))
    v, _ = torch.linalg.qr(random((n, k), seed + 1))
    return (u * values.double()) @ v.T, u @ v.T


def distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return torch.linalg.matrix_norm(x.double() - y.double(), 2).item()


def alone(top: float, lower: float, count: int) -> torch.Tensor:
    """Singular values from `lower` to 1 of which only one is large, so that the bound on it is sharp."""
    return torch.cat([torch.tensor([1.0]), torch.logspace(math.log10(top), math.log10(lower), count - 1)])


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
def test_exact(shape: tuple[int, int]) -> None:
    x, factor = with_values(torch.logspace(0, -8, 24), *shape)
    assert distance(polar(x, method="svd"), factor) < 1e-7
    well, factor = with_values(torch.logspace(0, -1, 24), *shape)
    assert distance(polar(well, method="svd"), factor) < 1e-13
    assert distance(polar(well, accuracy=1e-13, lower=0.05), factor) < 1e-12


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("method", ["direct", "gram"])
def test_never_further_than_the_classic_quintic_at_equal_steps(steps: int, method: str) -> None:
    """Singular values in [1e-3, 1]: ‖UVᵀ − X‖₂ beside Muon's coefficients with the same products."""
    x, factor = with_values(torch.logspace(0, -3, 64), 64, 96)
    ours = distance(polar(x, steps=steps, lower=1e-3, method=method), factor)
    classic = distance(polar(x, steps=steps, coefficients="muon", method=method), factor)
    assert ours <= classic
    torch_norm = x / x.norm()  # as torch.optim.Muon normalises
    for _ in range(steps):
        r = torch_norm @ torch_norm.T
        a, b, c = eg.MUON
        torch_norm = a * torch_norm + (b * r + c * r @ r) @ torch_norm
    assert ours <= distance(torch_norm, factor)


def spectra() -> dict[str, torch.Tensor]:
    low_rank = random((96, 6), 1) @ random((6, 96), 2)
    made = {
        "gaussian": random((96, 96)),
        "gaussian, 1:4": random((96, 384)),
        "low rank plus noise": 10 * low_rank + random((96, 96), 3),
        "geometric": with_values(torch.logspace(0, -4, 96), 384, 96)[0],
        "harmonic": with_values(1 / torch.arange(1, 97), 96, 96)[0],
    }
    return {name: x.float() for name, x in made.items()}


@pytest.mark.parametrize("name", spectra())
@pytest.mark.parametrize("dtype", [F32, F16])
def test_four_steps_are_as_orthogonal_as_five_of_torch(name: str, dtype: torch.dtype) -> None:
    """The default on typical gradients: mean square distance of the singular values from 1."""
    from torch.optim._muon import _zeropower_via_newtonschulz as newton_schulz

    def spread(x: torch.Tensor) -> float:
        return (torch.linalg.svdvals(x.double()) - 1).square().mean().sqrt().item()

    x = spectra()[name]
    peer = newton_schulz(x.clone(), eg.MUON, 5, 1e-7)
    assert spread(polar(x, dtype=dtype)) <= spread(peer)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", ["direct", "gram"])
@pytest.mark.parametrize("accuracy", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("degree", [3, 5])
def test_accuracy_is_kept(accuracy: float, degree: int, method: str, dtype: torch.dtype) -> None:
    # A single large value makes the bound on it exact, so that lower is met just so.
    x, factor = with_values(alone(2e-3, 1.05e-3, 40), 40, 160)
    made = polar(x.to(dtype), accuracy=accuracy, lower=1e-3, method=method, degree=degree)
    assert distance(made, factor) <= accuracy * 1.001 + (2e-4 if dtype == F32 else 0)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-8, 1e-3, 1e6, 1e18, 1e38])
@pytest.mark.parametrize("method", ["direct", "gram", "svd"])
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_scale_does_not_matter(scale: float, method: str, dtype: torch.dtype) -> None:
    x = random((16, 24)).to(dtype) / 4
    power = 2.0 ** round(math.log2(scale))  # exact in every dtype
    made = polar(x * power, method=method)
    torch.testing.assert_close(made, polar(x, method=method), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["direct", "gram", "svd", "auto"])
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_zero_and_deficient_rank(method: str, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 20, 30, dtype=F64)
    x[1] = random((20, 3)) @ random((3, 30), 1)
    x[2, 4, 5] = -7
    made = polar(x.to(dtype), method=method, steps=7)
    assert (made[0] == 0).all()
    # Rounding the input to its dtype raises its rank; what is above rounding comes out at 1.
    values = torch.linalg.svdvals(made[1].double())
    assert values[:3] == pytest.approx([1, 1, 1], abs=0.02 if dtype == F16 else 1e-4)
    assert values.max() < 1.02
    assert made[2, 4, 5].item() == pytest.approx(-1, abs=0.01)
    assert made[2].double().abs().sum().item() == pytest.approx(1, abs=0.01)


BAD_SPECTRA = {
    "rank 5": lambda: random((300, 5)) @ random((5, 64), 1),
    "1e-4": lambda: with_values(torch.logspace(0, -4, 64), 300, 64)[0],
    "1e-7": lambda: with_values(torch.logspace(0, -7, 64), 300, 64)[0],
    "1e-12": lambda: with_values(torch.logspace(0, -12, 64), 300, 64)[0],
}


@pytest.mark.parametrize("name", BAD_SPECTRA)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "steps", "lower"),
    [(F16, 4, 3e-3), (F16, 6, 1e-3), (F16, 8, 1e-5), (F32, 4, 3e-3), (F32, 6, 1e-3), (F32, 8, 1e-5), (F64, 9, 1e-5)],
)
def test_the_gram_iteration_holds(name: str, turned: bool, dtype: torch.dtype, steps: int, lower: float) -> None:
    x = BAD_SPECTRA[name]().float()
    x = x.T if turned else x
    made = polar(x, method="gram", dtype=dtype, steps=steps, lower=lower)
    polynomials, _ = plan(x=x, dtype=dtype, steps=steps, lower=lower)
    bound = 1 + coefficients.worst_error(polynomials, lower)
    assert torch.linalg.matrix_norm(made.double(), 2).item() <= bound + (0.03 if dtype == F16 else 0.01)


def test_without_restarts_it_would_not_hold() -> None:
    x = BAD_SPECTRA["1e-4"]().float()
    polynomials, _ = plan(x=x, dtype=F16)
    at_end_only = [False, False, False, True]
    wild = _iterate.iterate(x[None], polynomials, at_end_only, F16)[0].double()
    assert not torch.linalg.matrix_norm(wild, 2).item() < 2
    assert _iterate.restarts(polynomials, True, F16) == [False, True, False, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("method", ["direct", "gram", "svd"])
def test_what_is_not_finite_gives_nan_in_its_matrix_alone(bad: float, method: str) -> None:
    x = random((3, 8, 12), dtype=F32)
    x[1, 2, 3] = bad
    made = polar(x, method=method)
    assert made[1].isnan().any()
    torch.testing.assert_close(made[[0, 2]], polar(x[[0, 2]], method=method))


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (25, 25), (1, 9), (9, 1), (1, 1), (12, 96), (96, 12)])
@pytest.mark.parametrize("method", ["direct", "gram", "svd"])
def test_shapes_batches_and_transposes(shape: tuple[int, int], method: str) -> None:
    x = random((2, 3, *shape))
    made = polar(x, method=method, steps=6)
    assert made.shape == x.shape
    assert made.is_contiguous()
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(made[i, j], polar(x[i, j], method=method, steps=6), rtol=0, atol=1e-11)
    torch.testing.assert_close(polar(x.mT, method=method, steps=6), made.mT, rtol=0, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_matrices_go_one_by_one_and_on_one_thread_by_blocks(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x = random((2, 600, 700), dtype=F32)
    polynomials, _ = plan(x=x, dtype=F32)
    exact = _iterate.iterate(x.double(), polynomials, [True] * 4, F64)
    for method in ("direct", "gram"):
        made = polar(x, method=method, dtype=F32)
        torch.testing.assert_close(made.double(), exact, rtol=0, atol=2e-4)
    block = torch.empty(1, 600, 600)
    _iterate._symmetric(x[:1], x[:1].mT, block)
    torch.testing.assert_close(block[0], x[0] @ x[0].T, rtol=1e-4, atol=1e-3)
    if threads == 1:
        assert (block == block.mT).all()


@pytest.mark.parametrize("given_dtype", [F16, torch.float16, F32, F64])
@pytest.mark.parametrize("dtype", [None, F16, F32, F64])
def test_dtypes_in_are_dtypes_out(given_dtype: torch.dtype, dtype: torch.dtype | None) -> None:
    x, factor = with_values(torch.logspace(0, -1, 16), 16, 24)
    made = polar(x.to(given_dtype), dtype=dtype, steps=6, lower=0.01)
    assert made.dtype == given_dtype
    coarse = F16 in (given_dtype, dtype)
    assert distance(made, factor) < (0.08 if coarse else 0.02 if given_dtype == torch.float16 else 1e-3)
    assert polar(x.to(given_dtype), method="svd").dtype == given_dtype


def test_the_input_is_left_alone_and_gradients_flow_through_svd_alone() -> None:
    x = random((4, 4)).requires_grad_()
    before = x.detach().clone()
    assert not polar(x).requires_grad
    (gradient,) = torch.autograd.grad(polar(x, method="svd")[0, 0], x)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    assert (x == before).all()


def test_auto_takes_the_cheaper_way() -> None:
    polynomials = coefficients.optimal(4, 3e-3)
    assert module._ends(polynomials, "auto", (768, 768), F32) == (True,) * 4
    assert module._ends(polynomials, "auto", (768, 3072), F32) == (False, False, False, True)
    assert module._ends(polynomials, "auto", (3072, 768), F16) == (False, True, False, True)
    assert _iterate.products(polynomials, (True,) * 4) == (8, 4)
    assert _iterate.products(polynomials, (False, False, False, True)) == (2, 13)


def test_bfloat16_is_used_where_it_is_fast_and_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, 4)
    for fast in (F16, F32):
        monkeypatch.setattr(module, "fast_dtype", lambda device, fast=fast: fast)
        assert plan(x=x)[1] == fast
        assert plan(x=x, accuracy=0.05)[1] == F32
        assert plan(x=x, accuracy=0.15)[1] == fast
        assert plan(x=x, steps=6)[1] == F32
        assert plan(x=x, coefficients="muon")[1] == fast
        assert plan(x=x.double())[1] == F64
        assert plan(x=x, dtype=F32)[1] == F32


@pytest.mark.parametrize(("amx", "expected"), [(True, F16), (False, F32)])
def test_fast_dtype_asks_the_hardware(amx: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    fast_dtype.cache_clear()
    assert fast_dtype("cpu") == expected
    assert fast_dtype("mps") == F32
    fast_dtype.cache_clear()


def test_own_coefficients_and_empty_matrices() -> None:
    x, factor = with_values(torch.linspace(0.5, 1, 8), 8, 8)
    cubic = [(1.5, -0.5)] * 12
    assert distance(polar(x, coefficients=cubic), factor) < 1e-6
    assert polar(torch.zeros(0, 3, 4)).shape == (0, 3, 4)
    assert polar(torch.zeros(2, 0, 4)).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: polar(torch.ones(3)), r"shape \(3,\): must be a tensor .* two dimensions"),
        (lambda: polar(torch.ones(3, 3, dtype=torch.int32)), r"torch.int32"),
        (lambda: polar([[1.0]]), r"x is \[\[1.0\]\]"),  # pyright: ignore
        (lambda: polar(torch.ones(3, 3), method="qr"), r"method = 'qr': must be one of auto, direct, gram, svd"),
        (lambda: polar(torch.ones(3, 3), steps=0), r"steps = 0"),
        (lambda: polar(torch.ones(3, 3), steps=2, accuracy=0.1), r"accuracy = 0.1 with steps = 2: give one"),
        (lambda: polar(torch.ones(3, 3), accuracy=0), r"accuracy = 0"),
        (lambda: polar(torch.ones(3, 3), lower=0), r"lower = 0"),
        (lambda: polar(torch.ones(3, 3), degree=7), r"degree = 7: must be 3 or 5"),
        (lambda: polar(torch.ones(3, 3), dtype=torch.float16), r"dtype = torch.float16: must be torch.bfloat16"),
        (lambda: polar(torch.ones(3, 3), coefficients="best"), r"coefficients = 'best': must be one of muon, optimal"),
        (lambda: polar(torch.ones(3, 3), coefficients="muon", accuracy=0.1), r"accuracy = 0.1: works with"),
        (lambda: polar(torch.ones(3, 3), coefficients=[(1, 2)], steps=2), r"steps = 2: a sequence"),
        (lambda: polar(torch.ones(3, 3), coefficients=[(1, 2, 3, 4)]), r"coefficients\[0\]"),
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
