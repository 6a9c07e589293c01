"""The autocorrelations R(k) of an update direction.  [theory] 1.

Every optimizer averages gradients with a filter and then bends the average: not at all (SGDM), by 1/√v (Adam), by the
sign (SignSGDM, Lion), by the matrix sign (Muon). The filter gives the correlation ρ(k) of the averages, the bend turns
it into the correlation f(ρ) of the directions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from equipoise._check import Array

POWERS = np.array([1.0] + [2.0**i + 1 for i in range(1, 12)])
"""Odd powers in which f is expanded. Only odd ones occur, for an odd bend, and doubling them spans every time scale."""


@dataclass(frozen=True)
class Filter:
    """n_t = A·h_t + B·y_{t−1}, y_t = p·y_{t−1} + h_t: the averaging filter of every optimizer here.

    >>> Filter.momentum(0.9).correlation(3)
    array([1.  , 0.9 , 0.81])
    """

    A: float
    B: float
    p: float

    @staticmethod
    def momentum(beta: float, *, nesterov: bool = False, ema: bool = True) -> Filter:
        """Momentum m ← βm + (1−β)g (or βm + g), and Nesterov's n = βm + (1−β)g (or g + βm) on top."""
        unit = 1 - beta if ema else 1.0
        return Filter(unit * (1 + beta), unit * beta**2, beta) if nesterov else Filter(unit, unit * beta, beta)

    @staticmethod
    def lion(beta1: float, beta2: float) -> Filter:
        """h_0 = 1−β1, h_j = β1(1−β2)β2^{j−1}.  [kosson2024] Eq. 52–55."""
        return Filter(1 - beta1, beta1 * (1 - beta2), beta2)

    @property
    def power(self) -> float:
        """E n² for gradients of unit size: A² + B²/(1−p²)."""
        return self.A**2 + self.B**2 / (1 - self.p**2)

    @property
    def gain(self) -> float:
        """Σ h_j = A + B/(1−p), what one gradient adds up to over time."""
        return self.A + self.B / (1 - self.p)

    def correlation(self, lags: int) -> Array:
        """ρ(0..lags−1), the correlation of n_t with n_{t+k} for white gradients."""
        cross = self.B * (self.A + self.p * self.B / (1 - self.p**2)) / self.power
        return np.concatenate([[1.0], cross * self.p ** np.arange(lags - 1)])

    def lags(self, kept: float = 1.0) -> int:
        """How many lags matter when the weights keep a share `kept` of the past each step."""
        rate = self.p * kept
        if rate <= 0 or self.B == 0:
            return 2
        count = 2 + math.ceil(math.log(1e-15) / math.log(rate))
        if count > 20_000_000:
            raise ValueError(
                f"averaging factor = {self.p!r}: must be ≤ 0.999998, or sums over its memory take too long"
            )
        return count


@dataclass(frozen=True)
class Kernel:
    """f(ρ) = E⟨F(X), F(ρX + √(1−ρ²)Y)⟩ / E‖F(X)‖² of a bend F, and its expansion Σ_i weights_i ρ^powers_i."""

    f: Callable[[Array], Array] = field(repr=False)
    weights: Array
    powers: Array

    def __call__(self, rho: Array) -> Array:
        """The correlation of the directions whose averages correlate by rho."""
        return self.f(np.asarray(rho, dtype=np.float64))


def _expand(f: Callable[[Array], Array]) -> Kernel:
    # Nodes crowd towards ρ = 1, where f may have infinite slope; the end itself is left out.
    rho = np.sin(np.linspace(0, np.pi / 2, 400))[:-1]
    weights = np.linalg.lstsq(rho[:, None] ** POWERS, f(rho), rcond=1e-13)[0]
    return Kernel(f, np.asarray(weights, dtype=np.float64), POWERS)


@functools.cache
def sign_kernel() -> Kernel:
    """f(ρ) = (2/π) arcsin ρ, the Gaussian orthant law.  [theory] 1; [kosson2024] Eq. 63–64 has only its slope at 0.

    >>> round(float(sign_kernel()(0.5)), 6)
    0.333333
    """
    return _expand(lambda rho: 2 / np.pi * np.arcsin(rho))


def identity_kernel() -> Kernel:
    """f(ρ) = ρ: a direction that is its average, or that has none (normalised GD)."""
    return Kernel(lambda rho: rho, np.ones(1), np.ones(1))


MUON = (3.4445, -4.775, 2.0315)
"""Muon's published quintic, of x, x³ and x⁵. It leaves singular values in about [0.68, 1.13], never nearer to 1."""

QUINTICS = {
    "muon": (MUON,),
    "dion": (
        (4.0848, -6.8946, 2.927),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
"""The quintics of published Newton–Schulz iterations, step after step; the last goes on."""


def matrix_sign_kernel(rows: int, columns: int, newton_schulz: int = 0, quintics: str = "muon") -> tuple[Kernel, float]:
    """f(ρ) of the matrix sign UVᵀ for Gaussian rows × columns matrices, and its mean square σ.  [theory] 1.

    No closed form is known. f depends on ρ, the aspect ratio and, weakly, the size, so it is measured once for a
    matrix of the same aspect with at most 48 rows (0.5 % at larger sizes), by a seeded Monte Carlo estimate:

        f(ρ) = a₁ρ + (1 − a₁) g(ρ),    a₁ = (E⟨U,X⟩)² / (mn·E‖U‖²)

    where a₁ is the share of the linear part and g is estimated on what the linear part leaves. For vectors and very
    wide matrices f(ρ) → ρ; a square matrix has f(.5) ≈ .37 and f(.9) ≈ .78.

    Args:
        rows: of the matrix.
        columns: of the matrix.
        newton_schulz: steps of quintics on the matrix over its Frobenius norm; 0 for the matrix sign itself. Muon's
            leaves singular values between 0.7 and 1.2, and small ones below; dion's are within 3 % of 1.
        quintics: one of `QUINTICS`.

    >>> f, square = matrix_sign_kernel(64, 64)
    >>> 0.36 < float(f(0.5)) < 0.38, 0.76 < float(f(0.9)) < 0.79, square
    (True, True, 1.0)
    >>> round(matrix_sign_kernel(64, 64, newton_schulz=5)[1], 2)
    0.77
    """
    d, n = sorted((rows, columns))
    small = min(d, 48)
    own = d if newton_schulz else 1  # what the quintic does depends on the size
    return _matrix_sign_kernel(small, min(round(n * small / d), 16 * small + 256), newton_schulz, quintics, own)


@functools.cache
def _matrix_sign_kernel(d: int, n: int, newton_schulz: int, quintics: str, rows: int) -> tuple[Kernel, float]:
    rng = np.random.default_rng(0)
    samples = max(16, min(512, 40_000 // (d * d)))
    X, Y = rng.standard_normal((2, samples, d, n))

    def sign(x: Array) -> Array:
        # Through the small Gram matrix: several times as fast as a singular value decomposition, and accurate
        # enough here (a random matrix has condition number about n, squared by the Gram matrix).
        values, vectors = np.linalg.eigh(x @ x.swapaxes(-1, -2))
        sigma = np.sqrt(np.maximum(values, 1e-24))
        to = np.ones_like(sigma)
        if newton_schulz:
            to = sigma / np.sqrt(np.square(sigma).mean(-1, keepdims=True) * rows)
            for step in range(newton_schulz):
                a, b, c = QUINTICS[quintics][min(step, len(QUINTICS[quintics]) - 1)]
                to = a * to + b * to**3 + c * to**5
        return (vectors * (to / sigma)[:, None, :]) @ vectors.swapaxes(-1, -2) @ x

    U = sign(X)
    along, square = float((U * X).sum()) / samples, float(np.square(U).sum()) / samples
    linear_share = along**2 / (d * n * square)
    slope = along / (d * n)  # U ≈ slope · X in the least-squares sense
    rest = U - slope * X
    rho = np.sin(np.linspace(0, np.pi / 2, 14))
    rest_rho = [float(np.sum(rest * (sign(z := r * X + math.sqrt(max(0.0, 1 - r * r)) * Y) - slope * z))) for r in rho]
    g = np.array(rest_rho) / rest_rho[-1]
    # The rest has powers ≥ 3 only; eight of them, smoothed by the fit, are all that the estimate supports.
    powers = POWERS[1:9]
    weights = np.linalg.lstsq(rho[:, None] ** powers, g, rcond=1e-3)[0]
    weights = np.concatenate([[linear_share], (1 - linear_share) * weights])
    powers = POWERS[:9]
    kernel = Kernel(lambda x: (x[..., None] ** powers) @ weights, weights, powers)
    return kernel, square / d if newton_schulz else 1.0


@functools.cache
def adam_factors(beta1: float, beta2: float, lags: int) -> Array:
    """R(k) of m/√v for k = 0..lags−1, over C(1−β1)/(1+β1)·β1^k, its value where β2 → 1.

    v = Σ_k w_k z_k² with w_k = (1−β2)β2^k fluctuates and holds the gradients that it divides, so with Gaussian z

        I_j  = E[z_j²/v] = ∫₀^∞ (1+2w_j s)^{−1} Π_k (1+2w_k s)^{−1/2} ds                   (exact)
        R(k) = (1−β1)² Σ_j β1^{2j+k} E[z_j² / √(v_t v_{t+k})],
               E[z_j² / √(v_t v_{t+k})] ≈ √(I_j I_{j+k}) · exp(−(1−β2)(1−β2^k) / (2(1+β2)))

    the last as if log v were Gaussian, which is within 0.3 % for β2 ≥ 0.9 (measured).  [theory] 1, "Finite β2".

    >>> float(adam_factors(0.0, 0.999, 1)[0].round(4))
    0.999
    """
    # All of this is smooth in j and k, so long averages are taken at a few hundred of each.
    depth = 1 + (math.ceil(math.log(1e-12) / (2 * math.log(beta1))) if beta1 > 0 else 0)
    edges = _spread(depth)
    weight = beta1 ** (2.0 * edges[:-1]) - beta1 ** (2.0 * edges[1:]) if beta1 > 0 else np.ones(1)
    j = (edges[:-1] + edges[1:] - 1) / 2
    k = _spread(lags)[:-1]
    ages = np.concatenate([_spread(math.ceil(40 / (1 - beta2)))[:-1], [40 / (1 - beta2)]])
    ratio = mean_square_ratio(beta2, tuple(ages.tolist()))

    def root(age: Array) -> Array:
        return np.sqrt(np.interp(age, ages, ratio))

    pairs = root(j[None, :] + k[:, None]) @ (weight * root(j))
    drift = np.exp(-(1 - beta2) / (1 + beta2) * (1 - beta2**k) / 2)
    return np.interp(np.arange(lags), k, pairs * drift)


def _spread(count: int) -> Array:
    """0, 1, 2, … up to `count`, one by one at first and then ever wider apart."""
    steps = np.unique(np.geomspace(64, max(count, 64), 200).round()) if count > 64 else np.array([64.0])
    whole = np.concatenate([np.arange(64.0), steps])
    return np.append(whole[whole < count], float(count))


@functools.cache
def mean_square_ratio(beta2: float, ages: tuple[float, ...]) -> Array:
    """I_j = E[z_j²/v] for each age j: the mean square of a j steps old gradient over the present v."""
    if beta2 == 0:  # v is the present square: z_0²/v = 1, and E[z_j²/v] of any other diverges
        return np.ones(len(ages))
    # For β2 near 1 neighbours in v weigh the same: one factor stands for `stride` of them.
    stride = max(1, math.ceil(1 / (1 - beta2) / 50))
    k = (np.arange(math.ceil(40 / (1 - beta2) / stride)) + 0.5) * stride - 0.5
    s = np.exp(x := np.linspace(-12, 8, 400))
    product = np.exp(-0.5 * stride * np.log1p(2 * np.outer(s, (1 - beta2) * beta2**k)).sum(1))
    own = 1 + 2 * np.outer(s, (1 - beta2) * beta2 ** np.array(ages))
    return np.asarray(np.trapezoid((product * s)[:, None] / own, x, axis=0), dtype=np.float64)
