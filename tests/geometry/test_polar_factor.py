"""The polar factor against the singular value decomposition in float64: errors, scales, shapes, dtypes, odd inputs."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.geometry.norm_cases import random

from equipoise import geometry as eg
from equipoise.geometry import _iterate, coefficients
from equipoise.geometry import polar_factor as module
from equipoise.geometry.polar_factor import default_dtype, polar, polar_plan, rounding

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
    newton_schulz = pytest.importorskip("torch.optim._muon")._zeropower_via_newtonschulz

    def spread(x: torch.Tensor) -> float:
        return (torch.linalg.svdvals(x.double()) - 1).square().mean().sqrt().item()

    x = spectra()[name]
    peer = newton_schulz(x.clone(), eg.MUON, 5, 1e-7)
    room = 1.03 if dtype == F16 and name == "low rank plus noise" else 1.0
    assert spread(polar(x, dtype=dtype)) <= room * spread(peer)


def hard(k: int, lower: float, degree: int) -> dict[str, torch.Tensor]:
    """Singular values just inside [lower, 1] · s: the two-valued ones are those that rounding moves most."""

    def bound(values: torch.Tensor) -> torch.Tensor:
        return (values**8).sum() ** 0.125 if degree == 5 else (values**4).sum() ** 0.25

    made = {"alone": alone(2 * lower, 1.05 * lower, k).double()}
    for share in (0.1, 0.5, 0.9):
        values = torch.ones(k, dtype=F64)
        values[int(share * k) :] = 1.05 * lower * bound(values[: int(share * k)])
        made[f"{share} large"] = values
    return made


PROMISES = [
    *((dtype, accuracy, 1e-3) for dtype in (F32, F64) for accuracy in (0.3, 1e-2, 1e-3, 1e-4)),
    *((F32, accuracy, 1e-2) for accuracy in (0.1, 1e-3, 2e-5)),
    *((F16, accuracy, lower) for accuracy, lower in ((0.5, 3e-3), (0.3, 1e-2), (0.2, 1e-2), (0.1, 0.03), (0.05, 0.1))),
]


@pytest.mark.parametrize(("dtype", "accuracy", "lower"), PROMISES)
@pytest.mark.parametrize("method", ["direct", "gram"])
@pytest.mark.parametrize("degree", [3, 5])
def test_accuracy_is_kept(dtype: torch.dtype, accuracy: float, lower: float, method: str, degree: int) -> None:
    """On the worst spectra that are known, in every dtype, on any processor."""
    for name, values in hard(40, lower, degree).items():
        for shape in ((40, 160), (40, 40)):
            x, factor = with_values(values, *shape)
            made = polar(x, accuracy=accuracy, lower=lower, method=method, degree=degree, dtype=dtype)
            assert distance(made, factor) <= accuracy, name


@pytest.mark.parametrize(
    ("dtype", "accuracy", "lower", "cost"),
    [(F16, 0.3, 1e-3, "1"), (F16, 0.1, 3e-3, "0.4"), (F32, 1e-5, 3e-3, "3e-05"), (F64, 1e-14, 1e-2, "2e-14")],
)
def test_an_accuracy_that_rounding_forbids_is_refused(
    dtype: torch.dtype, accuracy: float, lower: float, cost: str
) -> None:
    with pytest.raises(ValueError, match=rf"accuracy = .* with lower = .*: rounding in {dtype} may cost {cost};"):
        polar(torch.ones(2, 2), accuracy=accuracy, lower=lower, dtype=dtype)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("lower", [3e-3, 1e-2, 0.1])
def test_rounding_costs_no_more_than_is_said(dtype: torch.dtype, lower: float) -> None:
    for degree in (3, 5):
        for values in hard(40, lower, degree).values():
            x, factor = with_values(values, 160, 40)
            made = polar(x, steps=12, lower=lower, degree=degree, method="direct", dtype=dtype)
            assert distance(made, factor) <= rounding(lower, dtype)


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


def two_valued(share: float, small: float, count: int = 40) -> torch.Tensor:
    values = torch.ones(count)
    values[int(share * count) :] = small
    return values


BAD_SPECTRA = {
    "rank 5": lambda: random((300, 5)) @ random((5, 64), 1),
    "1e-4": lambda: with_values(torch.logspace(0, -4, 64), 300, 64)[0],
    "1e-7": lambda: with_values(torch.logspace(0, -7, 64), 300, 64)[0],
    "1e-12": lambda: with_values(torch.logspace(0, -12, 64), 300, 64)[0],
    "half 0.03": lambda: with_values(two_valued(0.5, 0.03), 160, 40)[0],
    "half 0.01": lambda: with_values(two_valued(0.5, 0.01), 40, 160)[0],
    "most 0.03": lambda: with_values(two_valued(0.05, 0.03), 160, 40)[0],
    "few 1e-4": lambda: with_values(two_valued(0.75, 1e-4), 40, 160)[0],
}


@pytest.mark.parametrize("name", BAD_SPECTRA)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "steps", "lower"),
    [
        (F16, 3, 1e-2),
        (F16, 4, 3e-3),
        (F16, 5, 3e-3),
        (F16, 6, 1e-3),
        (F16, 8, 1e-5),
        (F32, 4, 3e-3),
        (F32, 6, 1e-3),
        (F32, 8, 1e-5),
        (F64, 9, 1e-5),
    ],
)
def test_the_gram_iteration_holds(name: str, turned: bool, dtype: torch.dtype, steps: int, lower: float) -> None:
    x = BAD_SPECTRA[name]().float()
    x = x.T if turned else x
    made = polar(x, method="gram", dtype=dtype, steps=steps, lower=lower)
    polynomials, _ = polar_plan(x=x, dtype=dtype, steps=steps, lower=lower)
    bound = 1 + coefficients.worst_error(polynomials, lower)
    assert torch.linalg.matrix_norm(made.double(), 2).item() <= bound + (0.1 if dtype == F16 else 0.01)


def test_without_restarts_it_would_not_hold() -> None:
    x = BAD_SPECTRA["1e-4"]().float()
    polynomials, _ = polar_plan(x=x, dtype=F16)
    at_end_only = [False, False, False, True]
    wild = _iterate.iterate(x[None], polynomials, at_end_only, F16)[0].double()
    assert not torch.linalg.matrix_norm(wild, 2).item() < 2
    assert _iterate.restarts(polynomials, True, F16, margin=True) == [False, True, False, True]


def test_without_its_margin_the_first_pair_would_not_hold() -> None:
    tops = []
    for safety in (1.01, coefficients.BF16_SAFETY):
        polynomials = coefficients.optimal(4, 3e-3, safety=safety, cushion=coefficients.BF16_CUSHION)
        for seed in (0, 3, 5):
            for small in (0.01, 0.03):
                x, _ = with_values(two_valued(0.5, small), 160, 40, seed)
                made = _iterate.iterate(x.float()[None], polynomials, [False, True, False, True], F16)[0]
                tops.append(torch.linalg.matrix_norm(made.double(), 2).item())
    assert max(tops[:6]) > 1.4
    assert max(tops[6:]) < 1.35
    assert _iterate.restarts(coefficients.optimal(4, 3e-3), True, F16) == [True, True, False, True]


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
    polynomials, _ = polar_plan(x=x, dtype=F32)
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
    assert module._ends(polynomials, "auto", (3072, 768), F16) == (True, True, False, True)
    assert module._ends(polynomials, "auto", (3072, 768), F16, None, True) == (False, True, False, True)
    assert _iterate.products(polynomials, (True,) * 4) == (8, 4)
    assert _iterate.products(polynomials, (False, False, False, True)) == (2, 13)


def test_the_dtype_depends_on_what_is_asked_and_on_the_kind_of_device() -> None:
    x = torch.zeros(4, 4)
    choices: list[dict[str, Any]] = [{}, {"steps": 6}, {"accuracy": 0.5}, {"coefficients": "muon"}]
    for options in choices:
        assert polar_plan(x=x, **options)[1] == F32
        assert polar_plan(x=x.bfloat16(), **options)[1] == F32
        assert polar_plan(x=x.double(), **options)[1] == F64
        assert polar_plan(x=x, dtype=F16, **options)[1] == F16  # no other instead
    for device, wanted in (("cuda", F16), ("mps", F32), ("xpu", F32), ("meta", F32)):
        assert default_dtype(F32, device) == wanted
        assert default_dtype(F64, device) == F64
        assert default_dtype(F32, device, accuracy=0.5) == F32


def test_it_does_not_ask_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch knows of instructions has no say."""
    x = random((16, 24), dtype=F32)
    before = polar(x)
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: pytest.fail("asked"), raising=False)
    assert torch.equal(polar(x), before)


@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("method", ["direct", "gram"])
def test_overwriting_changes_nothing_but_x(dtype: torch.dtype, method: str) -> None:
    for shape in ((3, 24, 40), (1, 24, 24), (2, 40, 24)):
        x = random(shape, dtype=F32)
        kept = x.clone()
        expected = polar(x, dtype=dtype, method=method, steps=6)
        assert torch.equal(x, kept)
        assert torch.equal(polar(x, dtype=dtype, method=method, steps=6, overwrite=True), expected)


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
